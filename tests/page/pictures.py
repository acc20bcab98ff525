"""Pictures of the page for docs/page/, of a server that runs with the demo conversation:

turnlog import agent/operations/sample/advising.jsonl --user lin-wei
python tests/page/pictures.py "$(turnlog page --user lin-wei)"

Each screen in English and light, and in Chinese and dark. Look at each before you commit it.
"""

import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.chromium import CHROMIUM

FOLDER = Path(__file__).parents[2] / "docs" / "page"
THREAD = "#/threads/advising-lin-wei"
SCREENS = {
    "threads": "#/threads",
    "chat": THREAD,
    "context": f"{THREAD}/context",
    "memories": "#/memories",
    "entities": "#/memories?view=entities",
    "recall": "#/recall?q=What+is+my+dog+called%3F",
}


def main(link: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1180, "height": 740}, locale="en-GB")
        page.goto(link)
        page.locator("main h1").wait_for()
        for language, theme in (("en", "light"), ("zh", "dark")):
            for key, value in (("language", language), ("theme", theme)):
                page.evaluate("([key, value]) => sessionStorage.setItem(key, value)", [f"turnlog.{key}", f'"{value}"'])
            for name, where in SCREENS.items():
                take(page, where, FOLDER / f"{name}-{language}-{theme}.png")
        browser.close()


def take(page: Page, where: str, path: Path) -> None:
    page.evaluate("where => { location.hash = where }", where)
    page.reload()
    page.wait_for_load_state("networkidle")
    if where.endswith("/context"):
        page.locator(".segments").last.get_by_role("button").nth(4).click()  # 16,000 tokens
        page.wait_for_timeout(1_000)
    if where == THREAD:
        page.locator(".turn-seen").last.click()
        page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)
    page.screenshot(path=path)


if __name__ == "__main__":
    main(sys.argv[1])
