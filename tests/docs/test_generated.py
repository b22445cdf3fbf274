"""Generated parts of the pages hold what the program holds, all of it."""

import ast
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from benches import power_report
from mkdocs.exceptions import PluginError

import mia_batch
from docs.generate import (
    attacks,
    figures,
    hooks,
    markdown,
    pictures,
    published,
    python,
    recipes,
    rooms,
    settings,
    speed,
    tables,
)
from mia_batch.attacks import families, names
from mia_batch.cli.main import command
from mia_batch.corpus.addresses import check_address
from mia_batch.known import find_model, find_set, named_sets
from mia_batch.settings import GROUPS, Settings
from tests.docs.test_examples import parse

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    """Pages are built there."""
    monkeypatch.chdir(REPOSITORY)


def rows(text):
    """Cells of the rows of Markdown tables, by the first."""
    lines = (
        line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("|")
    )
    return {first.strip("`"): [cell.strip() for cell in rest] for first, *rest in lines}


def test_every_attack_stands_in_its_family_with_its_formula():
    text = attacks.sections()
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == [*families()]
    for section, family in zip(sections, families().values(), strict=True):
        found = rows(section)
        assert [*found][2:] == [attack.name for attack in family]
        for attack in family:
            assert (
                markdown.code(attack.formula or str(attack.expr))
                == found[attack.name][0]
            )
            assert attack.undefined == found[attack.name][-1]
            assert attack.source.partition(",")[0] in section
            for setting in attack.settings:
                for name in setting.split("|"):
                    assert f"`--{name.replace('_', '-')}`" in section


def test_families_hold_every_attack_and_access_beyond_samples_is_named():
    listed = [attack.name for family in families().values() for attack in family]
    assert listed == [*names()][: len(listed)]
    assert len(listed) == len({*listed})
    section = attacks.sections().split("### Min-K% and Min-K%++")[1]
    found = rows(section.split("### ")[0])
    assert found["min_k_20_v1"][1] == "log-probabilities (`text`)"
    assert found["min_k_plus_plus_20_v1"][1] == "full distribution (`text`)"


def test_every_column_of_every_table_has_type_and_meaning():
    classes = tables.schema_classes()
    assert {"Targets", "Verdicts", "Paraphrases"} < {
        each.__name__ for each in classes.values()
    }
    text = "".join(map(tables.sections, tables.PAGES))
    sections = {
        section.partition("\n")[0]: section
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    }
    assert sorted(sections) == sorted(classes)
    for name, schema in classes.items():
        section = sections[name]
        found = rows(section)
        assert [*found][2:] == schema.column_names()
        assert {
            column for column, cells in found.items() if not all((cells[0], cells[-1]))
        } == set()


def test_a_table_says_of_a_column_what_its_schema_says():
    found = rows(tables.sections("answers").split("## verdicts")[1].split("## ")[0])
    assert found["p_value"] == [
        "Float64",
        "may be null",
        (
            "Share of units outside the training data, this one included, that score as"
            " high."
        ),
    ]
    assert found["level"][0] == "one of `target`, `document`, `group`, `collection`"


def test_every_setting_stands_under_its_topic():
    sections = re.split(r"^## ", settings.sections(), flags=re.MULTILINE)[1:]
    found: set[str] = set()
    for section, part in zip(sections, GROUPS, strict=True):
        assert section.startswith(f"{part.topic}\n")
        for name, field in part.model_fields.items():
            assert f"`--{name.replace('_', '-')}`" in section
            assert (field.description or "").partition("  [")[0].split(" |")[
                0
            ] in section
            found.add(name)
    assert found == {*Settings.model_fields}


def test_every_public_name_is_described():
    text = python.package()
    assert set(re.findall(r"^::: mia_batch\.(\w+)$", text, re.MULTILINE)) == {
        *mia_batch.__all__
    }
    for page, its_rooms in python.ROOMS.items():
        assert all(f"## mia_batch.{room}\n" in python.rooms(page) for room in its_rooms)


def test_rooms_stand_in_the_order_that_is_checked():
    pyproject = tomllib.loads(
        (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    )
    layers = pyproject["tool"]["importlinter"]["contracts"][0]["layers"]
    lines = rooms.layers().splitlines()[2:]
    assert len(lines) == len(layers)
    assert lines[0].startswith("| `extras.commands` | The commands of the extras")


def test_figures_are_those_of_the_bench():
    assert f"| `{power_report.DEFAULT}` | 84 | 4.6 | 0.93 |  |  |" in figures.power()
    assert "one pass | `min_k_plus_plus_20_v1` | 4 | 9 |" in figures.copies()
    assert (
        "| `loss_v1` | 1,000 | 0.50 (0.44 to 0.56) | 0.55 (0.49 to 0.61) |"
        in figures.manuals()
    )
    assert "| 32 | 1 | greedy | 84 | 3,099 | 0.70 | 0.93 | 0.40 |" in figures.points()
    assert "| share of nulls with p <= 0.05 | 0.05 | 0.050 |" in figures.rates()
    few = "| 40 nulls, normal, effect 5 | 0.016 | 1.000 | 0.000 | 5.322 | 11.907 |"
    assert few in figures.few_books()
    assert "| auc, AUC 0.6, 100 a class | 93 to 97 % | 95.0% |" in figures.coverage()
    assert (
        "| 40 | 30 | 40 |  | 28.8 | 0.7% ± 0.1% | 1.25% |  | 100% | 100% |"
        in figures.books()
    )
    assert "| AUC 0.7 | 0.96 | 193 | 0.106 | 0.043 | 0.052 |" in figures.weights()
    assert "| Gemma 3 270M, Q4_K_M | Moby-Dick (classics) | 0 | 1 | 1 |" in (
        figures.recited()
    )
    assert "| `extraction_run_v1` | 1, 1, 1 | 2, 2, 2 | 8, 9, 9 |" in figures.choices()
    assert "| `wbc_v1` | 0.68 (0.55 to 0.78) |" in figures.tuned()
    assert "| 0.96 (0.94 to 0.98) | 0.84 (0.80 to 0.88) |" in figures.answers()
    assert "| `self_critique_v1` | 0.46 (0.39 to 0.54) |" in figures.rl()
    assert "| parquet | by source | 5,000,000 | 35,000 | " in figures.drawing()
    assert "| 500 of each of 4 sources, 1,000 to compare, " in figures.draws()
    assert "| independent | 1.63% | 4.77% | 9.50% | 24.88% |" in figures.row_levels()
    assert "| 1 | nothing of the list | 0.27 |" in figures.row_order()
    assert figures.strips().splitlines()[1].startswith("alice_in_wonderland.txt")
    assert figures.power_picture().startswith("<svg ")
    beside_vllm = "| sampling, beside LLM.generate | 1.03 | 2026-11-21 |"
    assert beside_vllm in speed.history()
    assert "7  whole tables of pairs" in speed.history_picture()
    assert "| manuals-47m | 94 | transformers | 64 | not measured |" in speed.curves()
    assert "log-probabilities, manuals-47m" in speed.curve_picture()


def test_a_page_gets_its_parts_and_every_part_stands_on_one_page():
    text = hooks.on_page_markdown("before\n<!-- generate: rooms -->\nafter")
    assert text == f"before\n{rooms.layers()}\nafter"
    with pytest.raises(
        PluginError, match="asks for the part 'nothing'; there are attacks, "
    ):
        hooks.on_page_markdown("<!-- generate: nothing -->")
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    found = re.findall(r"<!-- generate: ([a-z]+) -->", text)
    assert sorted(found) == sorted(hooks.PARTS)


@pytest.mark.parametrize(
    "element",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/a.css">',
        "<img alt=x src=http://example/a.png>",
    ],
)
def test_a_page_that_would_load_from_the_network_is_refused(element):
    with pytest.raises(PluginError, match="loads from the network"):
        hooks.on_post_page(f"<p>text</p>{element}")


def test_links_to_elsewhere_are_no_loads():
    page = '<a href="https://pola.rs">Polars</a><script src="assets/a.js"></script>'
    assert hooks.on_post_page(page) == page


def test_the_readme_is_for_five_minutes():
    assert (
        len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
    )


def test_published_figures_are_of_attacks_and_sets_that_there_are():
    listed = {
        each["attack"] for page in published.FIGURES["tables"] for each in page["rows"]
    }
    assert listed <= {*names()}
    assert listed == {*published.FIGURES["differences"]}
    for page in published.FIGURES["tables"]:
        assert {len(each["figures"]) for each in page["rows"]} == {len(page["sets"])}
        words = page["command"].split()
        asked = words[words.index("--attacks") + 1].split(",")
        assert {*asked} == {each["attack"] for each in page["rows"]}
        assert find_set(words[words.index("--dataset") + 1]).paper.startswith(
            "Shi et al. 2024"
        )
    found = rows(published.sections())
    assert found["*no model at all*"][1:] == ["", "0.995", "0.992", "", "measured here"]
    assert found["SaMIA"][1:] == ["0.53", "0.55", "0.60", "0.71", "not run here"]


def test_each_family_of_named_sets_and_each_known_model_has_a_row():
    assert len(rows(published.known_sets())) == 2 + len(
        {each.title for each in named_sets().values()}
    )
    assert (
        "no text later than 2020-12-31 (the Pile was published then)"
        in published.known_models()
    )


@pytest.mark.parametrize("recipe", recipes.RECIPES, ids=lambda recipe: recipe["title"])
def test_a_recipe_has_commands_that_parse_addresses_that_are_read_and_records(recipe):
    assert all(find_model(model) for model in recipe["models"])
    for name in ("members", "held_out"):
        if name in recipe:
            assert check_address(recipe[name]) == recipe[name]
    for line in recipes.build_commands(recipe):
        program, *arguments = shlex.split(line)
        assert program == "mia-batch"
        parse(command, [*arguments])
        options = dict(pairwise(arguments))
        assert options["--model"].startswith(
            tuple(model.partition("/")[0] for model in recipe["models"])
        )
        if "--dataset" in options:
            assert find_set(options["--dataset"]).labels
        else:
            assert options["--input"] == recipe["members"]
        assert options.get("--revision") == recipe.get("revision")
        assert not {"MEMBERS", "REVISION"} & {*arguments}


def test_recipes_say_each_fact_once_and_no_revision_that_is_not_known():
    assert len(recipes.RECIPES) == 10
    assert len(rows(recipes.overview())) == 2 + 10
    text = recipes.sections()
    assert text.count("| revision | none known: take the commit") == 6
    assert (
        "| trained on | the Pile, deduplicated; no text later than 2020-12-31 |" in text
    )
    wrapped = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    joined = "".join(wrapped).replace("\\\n", " ").splitlines()
    commands = [
        shlex.split(line)
        for recipe in recipes.RECIPES
        for line in recipes.build_commands(recipe)
    ]
    assert [shlex.split(line)[1:] for line in joined] == commands


def test_a_row_of_the_list_of_roots_is_a_claim_and_has_a_signature_if_a_signer():
    for root in recipes.ROOTS:
        assert re.fullmatch("[0-9a-f]{64}", root["root"])
        assert re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", root["revision"])
        assert ("signer" in root) is ("key" in root) is ("signature" in root)
    line = f"{recipes.ROOTS[0]['root']} demo/model@{recipes.ROOTS[0]['revision'][:8]}"
    assert recipes.claim(recipes.ROOTS[0]).startswith(line)
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert f"root of inputs and tables: {recipes.ROOTS[0]['root']}\n" in readme
    assert "| nobody yet |" in recipes.roots()


def test_pictures_of_the_gallery_are_small_and_stand_on_its_page():
    page = (DOCS / "gallery.md").read_text("utf-8")
    shown = re.findall(r"\(assets/report-([\w-]+)\.webp\)", page)
    assert shown == [*pictures.GALLERY]
    for name in shown:
        assert (DOCS / "assets" / f"report-{name}.webp").stat().st_size < 80_000


def test_the_version_to_cite_is_the_one_of_the_package():
    cited = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    cargo = tomllib.loads((REPOSITORY / "Cargo.toml").read_text(encoding="utf-8"))
    version = cargo["workspace"]["package"]["version"]
    assert {f"version: {version}", "  - name: The mia-batch authors"} <= {*cited}
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{version}]" in changes


def texts_of(tree):
    """Every text that stands in code, in one piece where it is written in several."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (
                each.value if isinstance(each, ast.Constant) else "\0"
                for each in node.values
            )
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_message_of_the_troubleshooting_page_is_one_of_the_package():
    code = (path.read_text("utf-8") for path in (REPOSITORY / "python").rglob("*.py"))
    said = "\1".join(text for each in code for text in texts_of(ast.parse(each)))
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 30
    parts = [part.strip() for each in quoted for part in each.split("...")]
    assert [part for part in parts if part not in said] == []
