"""`holdfast groups`."""

from __future__ import annotations

from holdfast import Done
from tests.cli.conftest import Cli


def test_a_group_is_listed_shown_awaited_and_cancelled(cli: Cli) -> None:
    with cli.queue.group("import-7", on_success={"kind": "report"}) as group:
        for number in range(2):
            group.enqueue("page", {"n": number})
    claim = cli.queue.claim(kinds=["page"])
    assert claim is not None
    cli.queue.settle(claim, Done())
    cli.queue.claim(kinds=["none"])

    assert [one["name"] for one in cli.json("groups", "list")["groups"]] == ["import-7"]
    assert "1 done" in cli.text("groups", "list", columns=160)
    shown = cli.text("groups", "show", "import-7")
    assert "group import-7 is running: 2 members, 1 done, 1 unfinished" in shown
    assert "on_success: holdfast:group:import-7:on_success" in shown
    assert "group 'import-7' had not finished" in cli.refusal("groups", "wait", "import-7", "--timeout", "0", code=4)
    assert "1 members cancelled" in cli.text("groups", "cancel", "import-7")
    assert cli.run("groups", "wait", "import-7").exit_code == 1
    assert cli.json("groups", "show", "import-7")["state"] == "failed"
    assert "no group 'none'" in cli.refusal("groups", "show", "none", code=1)
