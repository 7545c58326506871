"""A refused save as Temporal shows it, without a server."""

from __future__ import annotations

from typing import cast
from unittest.mock import Mock

import pytest
from temporalio.exceptions import ApplicationError

from activities.contract import SaveInput
from activities.contract.save import BeginResult
from workflows.journal import Journal
from workflows.save_snapshot import SaveSnapshot


@pytest.mark.parametrize("details", [{}, {"checkpoint_id": "aaaa"}])
def test_a_refusal_keeps_its_details_apart_from_its_sentence(details: dict[str, str]) -> None:
    """Break: drop them; who holds the job is then told nowhere."""
    save = SaveSnapshot()
    save._journal = cast(Journal, Mock(Journal))
    save._save = SaveInput(job_id="demo")
    begun = BeginResult(
        agreed=False, refusal="checkpoint_running", reason="wait", incarnation=1, details=details
    )
    with pytest.raises(ApplicationError) as caught:
        save._refused(begun)
    assert (caught.value.type, caught.value.message) == ("checkpoint_running", "wait")
    assert caught.value.details == ((details,) if details else ())
