// The switch between the versions of a message.

import { button, element } from "./elements.js";

// `choose` gets the version that is chosen, and the label of the button.
export function switcher(versions, index, choose) {
  const step = (name, label, by) => {
    const made = button(name, () => choose(versions[index + by], label));
    made.setAttribute("aria-label", label);
    made.disabled = !versions[index + by];
    return made;
  };
  const place = element("span", [`${index + 1} / ${versions.length}`]);
  const parts = [step("‹", "Earlier version", -1), place, step("›", "Later version", 1)];
  const made = element("div", parts, "versions");
  made.setAttribute("role", "group");
  made.setAttribute("aria-label", "Versions");
  return made;
}

// Focus the button with this label of a message's switch, or else the other one.
export function focusSwitcher(box, label) {
  const buttons = [...box.querySelectorAll(".versions button:enabled")];
  (buttons.find((one) => one.ariaLabel === label) ?? buttons[0]).focus();
}
