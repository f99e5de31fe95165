"""Arrow's JDBC driver. The checks themselves are in tests/jdbc/JdbcChecks.java."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from serving import ENDLESS, PATIENCE, add_user, binary

SOURCE = Path(__file__).resolve().parents[2] / "jdbc/JdbcChecks.java"
DRIVER = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
CHECKS = re.findall(r'checks\.put\("(\w+)"', SOURCE.read_text())

pytestmark = pytest.mark.skipif(
    not (shutil.which("java") and (shutil.which("mvn") or "FLASHMESH_JDBC_DRIVER" in os.environ)),
    reason="JDBC IS NOT TESTED: java or mvn is missing; `./dev test` installs them",
)


@pytest.fixture(scope="session")
def java():
    """The command that runs the checks, with the driver from $FLASHMESH_JDBC_DRIVER or Maven."""
    if given := os.environ.get("FLASHMESH_JDBC_DRIVER"):
        jar = Path(given)
    else:
        # Beside the build output, so that it is fetched once.
        folder = binary().parent.parent / "jdbc"
        _, name, version = DRIVER.split(":")
        jar = folder / f"{name}-{version}.jar"
        if not jar.exists():
            plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
            fetch = ["mvn", "--batch-mode", "--quiet", plugin, f"-Dartifact={DRIVER}", f"-DoutputDirectory={folder}"]
            subprocess.run(fetch, check=True, cwd=folder.parent)
    return ["java", "--add-opens=java.base/java.nio=ALL-UNNAMED", "-Duser.timezone=UTC", "-cp", str(jar), str(SOURCE)]


@pytest.fixture(scope="session")
def outcomes(java, server):
    """What each check printed; one Java process runs them all."""
    command = [*java, "checks", server.listen, ENDLESS.format("jdbc endless")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * PATIENCE)
    parts = re.split(r"^(ok|FAILED) (\w+)$", done.stdout, flags=re.MULTILINE)[1:]
    outcomes = {name: (outcome, trace) for outcome, name, trace in zip(parts[::3], parts[1::3], parts[2::3])}
    assert outcomes, done.stdout + done.stderr
    return outcomes


@pytest.mark.parametrize("check", CHECKS)
def test_jdbc(outcomes, check):
    outcome, trace = outcomes[check]
    assert outcome == "ok", trace


def test_passwords(java, start, tmp_path):
    users = tmp_path / "users.toml"
    logins = [("ada", "correct horse"), ("bob", "b:ättery staple")]
    for login in logins:
        add_user(users, *login)
    server = start("--users", users)
    tried = [*logins, ("ada", "wrong"), ("nobody", "correct horse")]
    lines = "".join(f"{name}\t{password}\n" for name, password in tried)
    command = [*java, "login", server.listen]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=2 * PATIENCE, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["served", "served", "refused", "refused"], done.stdout
    assert "wrong user name or password" in done.stdout


@pytest.mark.parametrize("what", ["reconnect", "lost"])
def test_after_a_restart(java, start, what):
    server = start()
    client = subprocess.Popen([*java, what, server.listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout.readline() == "connected\n"
        server.kill()
        server.start()
        output, _ = client.communicate("\n", timeout=PATIENCE)
        assert output == f"ok {what}\n"
    finally:
        client.kill()
        client.wait()
