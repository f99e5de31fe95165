"""A rack whose nodes restart one after the other: no statement is broken off."""

import os

from histories import ACCOUNTS, Clients, whole
from running_racks import SMALL, flashmesh, racks  # noqa: F401
from test_heads import prepared

#: How often all nodes are restarted.
RESTARTS = int(os.environ.get("FLASHMESH_RACK_RESTARTS", "2"))
#: What a client is told whose statement was not begun: it can ask again, of whom it likes. And what
#: ADBC's driver says when it closes a statement a second time, as closing it was refused before.
NOT_BEGUN = ("connection refused", "nothing of this was done", "already closed (Unknown; ClosePreparedStatement)")


def test_a_rolling_restart_breaks_off_nothing(racks) -> None:  # noqa: F811
    rack = prepared(racks, deadline=2000)
    with Clients(rack) as clients:
        for _ in range(RESTARTS):
            clients.go_on_for(20)
            before = {name: node["pid"] for name, node in rack.status().items()}
            said = flashmesh("rack", "restart", rack.file, *SMALL).stdout
            assert sorted(said.split("  has restarted\n")) == ["", *sorted(before)], said
            after = rack.status()
            assert all(node["pid"] not in (None, before[name]) for name, node in after.items())
            # Clients go on: on a busy machine another node may become the head just then.
            whole(rack)
        clients.go_on_for(20)
    broken = [error for error in clients.errors if not any(text in error for text in NOT_BEGUN)]
    assert not broken, broken
    assert clients.history.transfers > 0
    for key, writes in clients.history.writes.items():
        told = [write.value for write in writes if write.acknowledged is not None]
        # Whoever was not told so was told that it was not begun.
        assert rack.rows("n01", f"SELECT value FROM register WHERE id = {key}") == [(max(told),)]
    assert rack.rows("n02", "SELECT sum(amount) FROM account") == [(100 * ACCOUNTS,)]


def test_a_rack_without_copies_is_not_restarted(racks) -> None:  # noqa: F811
    rack = racks(2)
    rack.up()
    refused = flashmesh("rack", "restart", rack.file, check=False)
    assert refused.returncode == 1 and "queries would fail while a node restarts" in refused.stderr
    assert all(state == "up" for state in rack.states().values())
