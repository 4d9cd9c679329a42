// Example questions. The built-in model knows little besides Ballast, so it gets questions that it answers well.

const BUILT_IN = [
  "What is Ballast?",
  "What is 47 + 58?",
  "How do I use another port?",
  "Sort these words: pear, fig, apple",
];
const OTHERS = [
  "Explain in five sentences how a mixture-of-experts model works.",
  "Write a Python function that finds the longest palindrome in a text.",
  "Derive the quadratic formula, step by step.",
  "Compare TCP and UDP in a table.",
];

export const isBuiltIn = (model) => model === "ballast-tiny";

export const examples = (model) => (isBuiltIn(model) ? BUILT_IN : OTHERS);
