"""Walks by Tab over all elements of a screen that can be focused."""

from playwright.async_api import Page

MOST_TABS = 250
# Marks the elements that can be focused; returns their number, and the elements that react only to the mouse.
MARK = """() => {
  const seen = element => element.checkVisibility({visibilityProperty: true}) && element.getClientRects().length > 0;
  const able = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
    .filter(element => !element.disabled && element.tabIndex >= 0 && seen(element));
  able.forEach(element => { element.dataset.unreached = "" });
  const mouseOnly = [...document.querySelectorAll("main *")].filter(element => seen(element)
    && getComputedStyle(element).cursor === "pointer"
    && !element.closest("[data-unreached], label, summary, :disabled"));
  document.activeElement?.blur();
  return [able.length, mouseOnly.map(element => element.outerHTML.slice(0, 120))];
}"""
# Removes the mark from the focused element; returns how its focus is shown, or "" if it is not.
STEP = """() => {
  const focused = document.activeElement;
  delete focused.dataset.unreached;
  const left = document.querySelectorAll("[data-unreached]").length;
  const shown = [focused, focused.firstElementChild, focused.closest(".composer-box, .segments")].filter(Boolean)
    .map(element => getComputedStyle(element)).some(style => style.outlineStyle !== "none"
      || style.boxShadow !== "none" || parseFloat(style.strokeWidth) > 2);
  return [left, shown || focused === document.body ? "" : focused.outerHTML.slice(0, 120)];
}"""


async def walk(page: Page, where: str, tabs: int = MOST_TABS) -> list[str]:
    """Presses Tab until all elements were focused, or `tabs` times after the menu; returns the problems."""
    count, mouse_only = await page.evaluate(MARK)
    wrong = [f"{where}: by mouse only: {element}" for element in mouse_only]
    if tabs < MOST_TABS:
        await page.locator("#main").focus()
    for _ in range(min(count + 8, tabs)):
        await page.keyboard.press("Tab")
        left, unseen = await page.evaluate(STEP)
        wrong += [f"{where}: focus is not seen: {unseen}"] if unseen else []
        if not left:
            return wrong
    unreached = "() => [...document.querySelectorAll('[data-unreached]')].map(each => each.outerHTML.slice(0, 120))"
    if tabs < MOST_TABS:
        return wrong
    return [*wrong, *(f"{where}: not reached: {each}" for each in await page.evaluate(unreached))]
