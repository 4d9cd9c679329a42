"""A model in your own process. Without a path it is the built-in one; LLM("model.gguf") takes yours."""

from ballast import LLM, SamplingParams

with LLM() as llm:
    prompts = ["What is Ballast?", "What is the default port?"]
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    for output in llm.chat(conversations, SamplingParams(temperature=0, max_tokens=64)):
        print(output.outputs[0].text)
