"""The action in a model's answer, also in an odd one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gym.environments.gymnasium_actions import wish_of


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text}
    return {"output": [{"type": "message", "role": "assistant", "content": [part]}]}


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>hit</action>", "hit"),
        ("Well.\n<ACTION>\n Hit me \n</Action> <action>stand</action>", "Hit me"),
        ("</action><action></action>", ""),
        ("<action>a<action>b</action>", "a<action>b"),
        ("<action>hit", None),
        ("hit</action>", None),
        ("", None),
    ],
)
def test_the_first_tag_acts(text: str, action: str | None) -> None:
    assert wish_of(said(text)).action == action


@pytest.mark.parametrize("endless", ["\n", "<action> "])
def test_an_answer_without_end_is_parsed_at_once(endless: str) -> None:
    """It is read on the event loop.

    Break: gym/environments/gymnasium_actions.py: search one pattern with spaces on both sides of
    the action.
    """
    began = time.monotonic()
    assert wish_of(said("<action>" + endless * 2_000)).action is None
    assert time.monotonic() - began < 1
