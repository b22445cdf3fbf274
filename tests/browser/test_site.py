"""The documentation in a real browser: what its copy button takes can be run."""

import shutil
from pathlib import Path

import markdown
import pytest
from playwright.sync_api import sync_playwright

BLOCK = r"""
```console
$ mia-batch audit books/ --model my-model/ \
      --non-members new-books/
8 of 30 texts come out word for word.
$ mia-batch show RUN
```
"""


@pytest.fixture(scope="module")
def page():
    html = markdown.markdown(
        BLOCK, extensions=["pymdownx.highlight", "pymdownx.superfences"]
    )
    style = Path("docs/assets/site.css").read_text("utf-8")
    path = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.set_content(f"<style>{style}</style>{html}")
        yield page
        browser.close()


def test_the_copy_button_takes_commands_without_prompts_and_output(page):
    # The theme marks the block so while it reads its text
    copied = page.evaluate(
        """() => {
          const code = document.querySelector(".highlight code");
          code.setAttribute("data-md-copying", "");
          const text = code.innerText;
          code.removeAttribute("data-md-copying");
          return text.trimEnd();
        }"""
    )
    assert copied == (
        "mia-batch audit books/ --model my-model/ \\\n"
        "      --non-members new-books/\n\n"
        "mia-batch show RUN"
    )
    shown = page.inner_text(".highlight code")
    assert shown.startswith("$ mia-batch audit")
    assert "8 of 30 texts come out word for word." in shown
