"""Settings from TOML: what is right loads, what is wrong is named with the file, the key and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallelsearch.config import Settings, apply_overrides, load, parse
from parallelsearch.errors import UsageError


class Inner(Settings):
    learning_rate: float = 1e-6
    steps: int = 10
    name: str = "x"


class Outer(Settings):
    train: Inner = Inner()
    maybe: Inner | None = None
    title: str


def written(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_and_overrides(tmp_path: Path) -> None:
    path = written(tmp_path, 'title = "a"\n[train]\nsteps = 3\n')
    settings = load(path, Outer, ["train.learning_rate=1e-4", "title=bare words", "maybe.steps=7"])
    assert settings.train.steps == 3
    assert settings.train.learning_rate == 1e-4
    assert settings.title == "bare words"
    assert settings.maybe is not None
    assert settings.maybe.steps == 7


@pytest.mark.parametrize(
    ("value", "expected"), [("[1, 2]", [1, 2]), ("true", True), ("'q'", "q"), ("bm25:DIR", "bm25:DIR"), ("", "")]
)
def test_right_hand_side_is_toml_or_a_bare_word(value: str, expected: object) -> None:
    assert apply_overrides({}, [f"a.b={value}"]) == {"a": {"b": expected}}


def test_overriding_leaves_the_original_alone() -> None:
    values = {"train": {"steps": 1}}
    assert apply_overrides(values, {"train.steps": 2}) == {"train": {"steps": 2}}
    assert values == {"train": {"steps": 1}}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.learning_rat=1"], ["train.learning_rat", "'learning_rate'", "settings.toml"]),
        (["maybe.stepz=1"], ["maybe.stepz", "'steps'"]),
        (["trian.steps=1"], ["'trian'", "'train'"]),
        (["steps=1"], ["'steps'. Did you mean 'train.steps'? Known here: maybe, title, train"]),
        (["train.steps=many"], ["train.steps", "integer", "'many'"]),
        (["train.learning_rate=nan"], ["train.learning_rate", "finite"]),
        (["title.x=1"], ["'title.x'", "not a section"]),
        (["steps"], ["'steps'", "section.key=value"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, overrides: list[str], words: list[str]) -> None:
    path = written(tmp_path, 'title = "a"\n')
    with pytest.raises(UsageError) as caught:
        load(path, Outer, overrides)
    for word in words:
        assert word in str(caught.value)


def test_every_mistake_is_listed() -> None:
    with pytest.raises(UsageError) as caught:
        parse({"train": {"stepss": 1, "learning_rate": "a"}}, Outer)
    assert len(str(caught.value).splitlines()) == 3
    assert "'title' is missing" in str(caught.value)


def test_the_keys_of_a_section_are_listed_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse({"title": "a", "one": 1, "two": 2, "train": {"three": 3}}, Outer)
    three, one, two = str(caught.value).splitlines()
    assert three.endswith("'train.three'. Known here: learning_rate, name, steps")
    assert one.endswith("'one'.")
    assert two.endswith("'two'. Known here: maybe, title, train")


def test_a_file_of_another_command_is_told_with_it(tmp_path: Path) -> None:
    path = written(tmp_path, 'title = "a"\nsources = 3\n')
    with pytest.raises(UsageError, match=r"settings.toml is a recipe of another command: parallelsearch brew .*toml$"):
        load(path, Outer, others={"sources": "brew"})
    with pytest.raises(UsageError, match="unknown key 'sources'"):
        load(path, Outer)


def test_file_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    written(tmp_path, "title = = 1\n")
    with pytest.raises(UsageError, match=r"settings\.toml is not TOML.*line 1"):
        load(tmp_path / "settings.toml", Outer)
    with pytest.raises(UsageError, match=r"there is no file '.*' \(looked in .*\)\. Did you mean 'settings\.toml'"):
        load(tmp_path / "setting.toml", Outer)
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path, Outer)


def test_settings_do_not_change_after_loading() -> None:
    settings = parse({"title": "a"}, Outer)
    with pytest.raises(ValueError, match="frozen"):
        settings.title = "b"  # type: ignore[misc]
