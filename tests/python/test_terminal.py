"""The shell, as somebody types into it on a terminal, and command lines of the binary."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest
from conftest import binary

PROGRAM = str(binary())
PROMPT = "flashmesh> "
#: What the line editor writes when a line is done: pastes come as they are again.
EDITED = "\x1b[?2004l"
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def flashmesh(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


class Terminal:
    """A program on a terminal of 80 columns."""

    def __init__(self, *arguments: object, home: Path, **environment: str) -> None:
        self.child, self.fd = pty.fork()
        if self.child == 0:
            os.environ.update({"TERM": "xterm", "PAGER": "cat", "HOME": str(home), **environment})
            os.execv(PROGRAM, [PROGRAM, *map(str, arguments)])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))

    def until(self, text: str, behind: str = "") -> str:
        """What is printed up to `text`, behind the last `behind`. It has to come within a minute."""
        seen = b""
        end = time.monotonic() + 60
        while text not in seen.decode(errors="replace").rpartition(behind or "\0")[2] or behind.encode() not in seen:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {text!r} in {seen!r}"
            try:
                more = os.read(self.fd, 1 << 16)
            except OSError:
                more = b""
            assert more, f"ended without {text!r}: {seen!r}"
            seen += more
        return seen.decode(errors="replace")

    def write(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def answer(self, line: str) -> str:
        """Types a line; gives what is printed after it, colours and all."""
        self.write(f"{line}\r")
        # The line editor draws the line again with every key; what follows the end of editing is ours.
        printed = self.until(PROMPT, behind=EDITED).rpartition(EDITED)[2]
        return printed.partition("\x1b[?2004h")[0].replace("\r\n", "\n").removeprefix("\n")

    def leave(self) -> None:
        self.write("\x04")
        assert self.ended() == 0

    def ended(self) -> int:
        while True:
            try:
                if not os.read(self.fd, 1 << 16):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def database(tmp_path: Path) -> Path:
    database = tmp_path / "sales.db"
    made = flashmesh(
        database,
        "-c",
        "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR, price DECIMAL(8, 2), spot REAL[2], UNIQUE (name));"
        "INSERT INTO item VALUES (1, 'it''s', 1.5, [1, 2]), (2, NULL, NULL, NULL), (3, 'c|d', 7, [3, 4]);"
        "CREATE INDEX item_text ON item USING ngram (name);"
        "CREATE VIEW cheap AS SELECT name FROM item WHERE price < 5",
    )
    assert made.returncode == 0, made.stderr
    return database


def test_a_database_is_named_by_its_place(database: Path, tmp_path: Path) -> None:
    read = flashmesh("--db", database, "--format", "csv", "-c", "SELECT id FROM item WHERE price > 5")
    assert read.stdout == "id\n3\n"
    assert flashmesh(database, "fsck").returncode == 0
    twice = flashmesh(database, "--db", database, "-c", "SELECT 1")
    assert twice.returncode == 2 and "--db" in twice.stderr
    mistyped = subprocess.run([PROGRAM, "srve"], capture_output=True, text=True, cwd=tmp_path)
    assert mistyped.returncode == 2 and "did you mean 'serve'?" in mistyped.stderr
    assert not (tmp_path / "srve").exists()


@pytest.mark.parametrize(("shell", "mark"), [("bash", "complete -F"), ("zsh", "#compdef"), ("fish", "complete -c")])
def test_shells_get_completions(shell: str, mark: str) -> None:
    done = flashmesh("completions", shell)
    assert done.returncode == 0 and mark in done.stdout and "fsck" in done.stdout


def test_bash_takes_its_completions() -> None:
    script = 'source <("$0" completions bash) && complete -p flashmesh'
    done = subprocess.run(["bash", "-c", script, PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0 and "flashmesh" in done.stdout, done.stderr


def test_results_have_layouts(database: Path) -> None:
    def printed(layout: str) -> str:
        query = "SELECT id, name FROM item WHERE id <> 2 ORDER BY id"
        done = flashmesh(database, "--format", layout, "-c", query)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert printed("line") == "  id = 1\nname = it's\n\n  id = 3\nname = c|d\n"
    assert printed("insert") == "INSERT INTO result VALUES (1, 'it''s');\nINSERT INTO result VALUES (3, 'c|d');\n"
    assert printed("markdown").splitlines()[3].split() == ["|", "3", "|", "c\\|d", "|"]
    assert "<tr><td>3</td><td>c|d</td></tr>" in printed("html")
    assert printed("box").startswith("┌")


def test_a_table_is_summarised(database: Path) -> None:
    head = "column_name,column_type,min,max,approx_unique,avg,std,q25,q50,q75,count,null_percentage"
    for what in ["item", "public.item", "SELECT id, name, price, spot FROM item"]:
        done = flashmesh(database, "--format", "csv", "-c", f"SUMMARIZE {what}")
        lines = done.stdout.splitlines()
        assert lines[0] == head, done.stderr
        assert lines[1] == "id,INTEGER,1,3,3,2.0,1.0,1.25,2.0,2.75,3,0.0"
        assert lines[2] == "name,VARCHAR,c|d,it's,2,,,,,,3,33.33"
        assert lines[3].startswith('price,"DECIMAL(8,2)",1.50,7.00,2,4.25,3.88908729652601')
        assert lines[3].endswith(",1.5,4.25,7.0,3,33.33")
        assert lines[4].startswith("spot,") and lines[4].endswith(",3,33.33")
    twice = flashmesh(database, "--format", "csv", "-c", "SUMMARIZE SELECT id AS a, id + 1 AS b, id FROM item")
    assert [line.split(",")[0] for line in twice.stdout.splitlines()[1:]] == ["a", "b", "id"]
    # In several queries, whose rows are in the columns' order.
    wide = ", ".join(f"id + {number} AS c{number}" for number in range(100))
    done = flashmesh(database, "--format", "csv", "-c", f"SUMMARIZE SELECT {wide} FROM item")
    found = [line.split(",") for line in done.stdout.splitlines()[1:]]
    assert [(c[0], c[2], c[3]) for c in found] == [(f"c{n}", str(n + 1), str(n + 3)) for n in range(100)], done.stderr
    missing = flashmesh(database, "-c", "SUMMARIZE nothing")
    assert missing.returncode == 1 and "nothing" in missing.stderr


def test_results_go_to_files(database: Path, home: Path, tmp_path: Path) -> None:
    shell = Terminal(database, home=home)
    shell.until(PROMPT)
    once, every = tmp_path / "once.csv", tmp_path / "every.json"
    shell.answer(f".once {once}")
    assert "it's" not in shell.answer("SELECT id, name FROM item ORDER BY id LIMIT 1;")
    assert once.read_text() == "id,name\n1,it's\n"
    assert "it's" in shell.answer("SELECT name FROM item WHERE id = 1;")
    shell.answer(f".output {every}")
    shell.answer("SELECT 1 AS a;")
    shell.answer("SELECT 2 AS a;")
    shell.answer(".output")
    assert every.read_text() == '[{"a":1}]\n[{"a":2}]\n'
    assert "making" in shell.answer(f".output {tmp_path}")
    assert "| 3 " in shell.answer("SELECT 3;")
    shell.leave()


def test_types_charts_and_plans_are_drawn(database: Path, home: Path) -> None:
    shell = Terminal(database, home=home)
    shell.until(PROMPT)
    shell.answer(".types on")
    assert "Decimal128(8, 2)" in shell.answer("SELECT price FROM item;")
    bars = shell.answer(".chart SELECT name, id FROM item WHERE id <> 2 ORDER BY id")
    lengths = [line.count("█") for line in bars.splitlines() if "█" in line]
    assert len(lengths) == 2 and lengths[1] // lengths[0] in (2, 3)
    assert "has none" in shell.answer(".chart SELECT name FROM item")
    plan = shell.answer("EXPLAIN SELECT name, count(*) FROM item WHERE price > 2 GROUP BY name;")
    assert "\x1b[32mpushed=[price >" in plan and "└─ " in plan and "logical" not in plan
    assert max(len(line) for line in CONTROLS.sub("", plan).splitlines()) <= 80
    shell.leave()
    quiet = Terminal(database, home=home, NO_COLOR="1")
    quiet.until(PROMPT)
    plan = quiet.answer("EXPLAIN SELECT count(*) FROM item WHERE price > 2;")
    assert "pushed=[price >" in plan and "\x1b[" not in plan


def test_data_commands_no_terminal(home: Path) -> None:
    shell = Terminal(home=home)
    shell.until(PROMPT)
    evil = "chr(27) || ']0;owned' || chr(7)"
    for layout in ["table", "box", "line", "markdown", "html", "insert", "csv", "json"]:
        shell.answer(f".mode {layout}")
        answer = shell.answer(f"SELECT {evil} AS x;")
        assert "\x1b]0;" not in answer and "owned" in answer
    shell.answer(".mode automatic")
    assert "\x1b]0;" not in shell.answer(f"EXPLAIN SELECT value = {evil} FROM generate_series(1, 2);")
    assert "\x1b]0;" not in shell.answer(f".chart SELECT {evil}, 1")


def test_a_dump_makes_the_same_database(database: Path, home: Path, tmp_path: Path) -> None:
    shell = Terminal(database, home=home)
    shell.until(PROMPT)
    dump, other = tmp_path / "all.sql", tmp_path / "other.db"
    shell.answer(f".once {dump}")
    shell.answer(".dump")
    assert "no table" in shell.answer(".dump nothing")
    # In place of this one, in the same shell.
    assert "other.db" in shell.answer(f".open {other}")
    shell.answer(f".read {dump}")
    shell.leave()
    for question in [
        "SELECT * FROM item ORDER BY id",
        "SELECT * FROM cheap",
        "DESCRIBE item",
        "SELECT name, kind, columns FROM system.indexes ORDER BY name",
    ]:
        answers = [flashmesh(place, "--format", "json", "-c", question) for place in (database, other)]
        assert answers[0].returncode == 0 and answers[0].stdout == answers[1].stdout
    again = flashmesh(other, "-c", "INSERT INTO item VALUES (1, 'x', 1, NULL)")
    assert again.returncode == 1


def test_a_dump_has_schemas_decimals_and_views_of_views(tmp_path: Path) -> None:
    before, after = tmp_path / "before.db", tmp_path / "after.db"
    made = flashmesh(
        before,
        "-c",
        "CREATE SCHEMA shop; CREATE TABLE shop.price (id INT PRIMARY KEY, much DECIMAL(20, 2), most DECIMAL(60, 3)[]);"
        "INSERT INTO shop.price VALUES (1, '123456789012345678.91', ['123456789012345678901234567890.123']), (2, -0.5, NULL);"
        "CREATE VIEW zebra AS SELECT id, much FROM shop.price; CREATE VIEW shop.middle AS SELECT * FROM public.zebra;"
        "CREATE VIEW ant AS SELECT * FROM Shop.MIDDLE WHERE id = 1;"
        # Columns called as views are none of them.
        "CREATE VIEW much AS SELECT id, 1 AS cat FROM shop.price; CREATE VIEW cat AS SELECT id, id AS much FROM much",
    )
    assert made.returncode == 0, made
    dump = flashmesh(before, "--quiet", "-c", ".dump")
    script = tmp_path / "dump.sql"
    script.write_text(dump.stdout)
    read = flashmesh(after, "-f", script)
    assert read.returncode == 0, read
    for question in ["SELECT * FROM shop.price ORDER BY id", "SELECT * FROM ant", "SELECT * FROM shop.middle ORDER BY id"]:
        answers = [flashmesh(place, "--format", "json", "-c", question) for place in (before, after)]
        assert answers[0].returncode == 0 and answers[0].stdout == answers[1].stdout
        assert "123456789012345678.91" in answers[0].stdout


def test_what_can_not_be_dumped_is_said_before_anything_is(tmp_path: Path) -> None:
    database = tmp_path / "some.db"
    last = 2**63 - 1
    flashmesh(
        database,
        "-c",
        f"CREATE TABLE a AS SELECT 1 AS x; CREATE TABLE b (id BIGINT GENERATED ALWAYS AS IDENTITY (START WITH {last}), x INT);"
        "INSERT INTO b (x) VALUES (1)",
    )
    dump = flashmesh(database, "--quiet", "-c", ".dump")
    assert dump.returncode == 1 and dump.stdout == "" and "column id of b is generated" in dump.stderr
    assert "CREATE TABLE a" in flashmesh(database, "--quiet", "-c", ".dump a").stdout


def test_a_file_is_run_first(database: Path, home: Path, tmp_path: Path) -> None:
    (home / ".flashmeshrc").write_text(".mode csv\nSELECT 'from' || ' home';\n")
    begun = Terminal(database, home=home)
    assert "from home" in begun.until(PROMPT)
    assert begun.answer("SELECT 1 AS a;").startswith("a\n1\n")
    begun.leave()
    without = Terminal(database, "--no-init", home=home)
    assert "from home" not in without.until(PROMPT)
    without.leave()
    mine = tmp_path / "mine.sql"
    mine.write_text("SELECT 'from' || ' mine';\n.quit\n")
    named = Terminal(database, "--init", mine, home=home)
    named.until("from mine")
    assert named.ended() == 0
    # Scripts give the same wherever they run.
    script = subprocess.run(
        [PROGRAM, database, "-c", "SELECT 1 AS a"], capture_output=True, text=True, env={**os.environ, "HOME": str(home)}
    )
    assert "from home" not in script.stdout and script.stdout.startswith("+")
    missing = flashmesh(database, "--init", tmp_path / "none", "-c", "SELECT 1")
    assert missing.returncode == 2


def test_scripts_have_commands(database: Path, tmp_path: Path) -> None:
    listed = flashmesh(database, "-c", ".tables")
    assert re.search(r"^cheap +view$", listed.stdout, re.M) and re.search(r"^item +table +3 rows$", listed.stdout, re.M), listed
    script = tmp_path / "script.sql"
    out = tmp_path / "ids.csv"
    script.write_text(
        f"SELECT 1 AS one;\n.mode csv\nSELECT id FROM item ORDER BY id;\n.once {out}\nSELECT 2 AS two;\n"
        ".read nothing.sql\nSELECT 3;\n"
    )
    ran = flashmesh(database, "-f", script)
    assert ran.returncode == 1 and "error: reading nothing.sql" in ran.stderr
    assert ran.stdout.endswith("+-----+\nid\n1\n2\n3\n") and out.read_text() == "two\n2\n"
    # A mode lasts from one source to the next, and what can't be parsed anywhere runs nothing.
    both = flashmesh(database, "-c", ".mode csv", "-c", "SELECT 4 AS four", "-c", ".quit", "-c", "SELECT 5")
    assert (both.returncode, both.stdout) == (0, "four\n4\n")
    wrong = flashmesh(database, "-c", "DELETE FROM item;\n.mode csv\nSELECT 'ü';\n  SELECT id FRM item;\n")
    assert wrong.returncode == 1 and "4 |   SELECT id FRM item;\n  |                 ^" in wrong.stderr, wrong.stderr
    assert wrong.stdout == "" and flashmesh(database, "--format", "csv", "-c", "SELECT count(*) FROM item").stdout.endswith("3\n")
    unknown = flashmesh(database, "-c", ".tabels")
    assert unknown.returncode == 1 and "did you mean .tables?" in unknown.stderr
    # What is dumped is made anew by another pipe.
    copy = tmp_path / "copy.db"
    dumped = flashmesh(database, "-c", ".dump").stdout
    made = subprocess.run([PROGRAM, copy], input=dumped, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    rows = [flashmesh(place, "--format", "json", "-c", "SELECT * FROM item ORDER BY id").stdout for place in (database, copy)]
    assert rows[0] == rows[1] and "it's" in rows[0]
    opened = flashmesh(copy, "-c", "DROP VIEW cheap", "-c", f".open {database}", "-c", ".tables")
    assert opened.returncode == 0 and re.search(r"^cheap +view$", opened.stdout, re.M), opened


def test_scripts_show_how_far_they_are(home: Path) -> None:
    # Looks at pairs for ever.
    endless = "SELECT count(*) FROM generate_series(1, 100000000000) AS a(x), generate_series(1, 9) AS b(y) WHERE x * y < 0"
    running = Terminal("-c", endless, home=home)
    running.until("1 s")
    running.write("\x03")
    assert running.ended() == 128 + signal.SIGINT
    # Somebody who wants results only gets these.
    slow = "SELECT count(*) AS n FROM generate_series(1, 300000000) AS a(x) WHERE x % 7 = 8"
    quiet = Terminal("-q", "--format", "csv", "-c", slow, home=home)
    assert quiet.until("n\r\n0\r\n") == "n\r\n0\r\n"
    assert quiet.ended() == 0


def test_users_are_changed_listed_and_removed(tmp_path: Path, home: Path) -> None:
    users = tmp_path / "users.toml"

    def user(*arguments: str, password: str = "") -> subprocess.CompletedProcess[str]:
        command = [PROGRAM, "user", *arguments, "--users", str(users)]
        return subprocess.run(command, input=password, capture_output=True, text=True)

    assert user("add", "ada", "--admin", password="first\n").returncode == 0
    assert user("add", "bob", password="second\n").returncode == 0
    users.write_text("# ours\n" + users.read_text())
    before = users.read_text()
    assert user("passwd", "bob", password="third\n").returncode == 0
    after = users.read_text()
    assert after.startswith("# ours\n") and after != before and "third" not in after
    assert user("list").stdout == "ada  admin\nbob  1 grant\n"
    assert user("remove", "bob").returncode == 0
    assert user("list").stdout == "ada  admin\n"
    last = user("remove", "ada")
    assert last.returncode == 1 and "last user" in last.stderr
    nobody = user("passwd", "eve", password="x\n")
    assert nobody.returncode == 1 and "no user 'eve'" in nobody.stderr


def test_ctrl_c_at_a_password_leaves_the_terminal_as_it_was(tmp_path: Path, home: Path) -> None:
    asked = Terminal("user", "add", "ada", "--users", tmp_path / "users.toml", home=home)
    before = termios.tcgetattr(asked.fd)
    asked.until("Password for 'ada': ")
    # The prompt is there before what is typed is hidden.
    end = time.monotonic() + 60
    while termios.tcgetattr(asked.fd)[3] & termios.ECHO:
        assert time.monotonic() < end
    asked.write("secre\x03")
    # As the terminal tells it once the process has ended, and before its last descriptor goes.
    _, status = os.waitpid(asked.child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGINT
    assert termios.tcgetattr(asked.fd)[3] == before[3]
    assert not (tmp_path / "users.toml").exists()
