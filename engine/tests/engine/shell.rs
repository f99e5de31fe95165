//! The shell on a pseudo-terminal: what a user types, and what appears.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// When a test gives up. Nothing is expected to take so long.
const PATIENCE: Duration = Duration::from_secs(120);
const PROMPT: &str = "flashmesh> ";
const TAB: &str = "\t";
const ENTER: &str = "\r";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";
const BELL: &str = "\x07";

/// A shell, and the terminal that it believes to run in.
struct Terminal {
    child: Child,
    keys: File,
    output: Receiver<Vec<u8>>,
    /// What has appeared since the last match, without colours and cursor movements.
    seen: String,
    /// Bytes of an escape sequence or a character that goes on.
    rest: Vec<u8>,
}

impl Terminal {
    /// A shell in a window of 24 rows and 400 columns: no line is wrapped, with its history below `state`.
    fn start(state: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let window = libc::winsize {
            ws_row: 24,
            ws_col: 400,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: all pointers are to live variables of this frame or null, which is allowed for
        // the name and the modes.
        let opened = unsafe {
            libc::openpty(
                &mut master,
                &mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const window,
            )
        };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call has just given both, and nobody else has them.
        let (master, slave) =
            unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmesh"));
        command
            .args(arguments)
            .env("XDG_STATE_HOME", state)
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .envs(variables.iter().copied())
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave));
        // SAFETY: both calls are ones that may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // Ctrl-C reaches who has a controlling terminal.
                if libc::setsid() == -1 || libc::ioctl(0, libc::TIOCSCTTY, 0) == -1 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        // The ends that the child has are its alone, so that reading ends when it does.
        drop(command);
        let keys = File::from(master);
        let mut screen = keys.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            keys,
            output,
            seen: String::new(),
            rest: Vec::new(),
        }
    }

    fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until one of the texts appears, gives which, and forgets all up to its end.
    fn wait_for_any(&mut self, texts: &[&str]) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = texts.iter().enumerate();
            let found = found.filter_map(|(which, text)| Some((self.seen.find(text)?, which)));
            if let Some((at, which)) = found.min() {
                self.seen.drain(..at + texts[which].len());
                return which;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.appear(&bytes),
                Err(RecvTimeoutError::Timeout) => panic!("no {texts:?} in: {}", self.seen),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended before {texts:?}: {}", self.seen)
                }
            }
        }
    }

    /// Waits until a text appears, and gives what came before it.
    fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.find(text) {
                let before = self.seen[..at].to_string();
                self.seen.drain(..at + text.len());
                return before;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.appear(&bytes),
                Err(error) => panic!("no {text:?} ({error}) in: {}", self.seen),
            }
        }
    }

    /// Types a line and gives what appears up to the next prompt.
    fn run(&mut self, line: &str) -> String {
        self.type_keys(line);
        self.type_keys(ENTER);
        // The line itself, as often as it is drawn, and the end of it.
        self.wait_for("\n");
        self.wait_for(PROMPT)
    }

    /// Adds what was printed, without escape sequences.
    fn appear(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        loop {
            let escape = self.rest.iter().position(|byte| *byte == 0x1b);
            let plain = escape.unwrap_or(self.rest.len());
            let text = match std::str::from_utf8(&self.rest[..plain]) {
                Ok(text) => text.len(),
                Err(error) => error.valid_up_to(),
            };
            let text: Vec<u8> = self.rest.drain(..text).collect();
            self.seen
                .push_str(&String::from_utf8(text).unwrap().replace('\r', ""));
            let Some([0x1b, rest @ ..]) = self.rest.get(..) else {
                return;
            };
            // `ESC [ … letter`, or `ESC` and one character.
            let end = match rest {
                [b'[', parameters @ ..] => {
                    let end = parameters.iter().position(|b| (0x40..0x7f).contains(b));
                    end.map(|end| end + 3)
                }
                [_, ..] => Some(2),
                [] => None,
            };
            let Some(end) = end else { return };
            self.rest.drain(..end);
        }
    }

    /// Waits for the end and gives the exit code.
    fn end(mut self) -> Option<i32> {
        // Whatever it still prints must be read, or it can't end.
        loop {
            match self.output.recv_timeout(PATIENCE) {
                Ok(bytes) => self.appear(&bytes),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {}", self.seen),
            }
        }
        self.child.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Nothing to do where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All that a shell with these arguments gives to a terminal, byte for byte.
fn raw_output(arguments: &[&str]) -> String {
    let state = tempfile::tempdir().unwrap();
    let terminal = Terminal::start(state.path(), arguments, &[]);
    let bytes: Vec<u8> = terminal.output.iter().flatten().collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn data_commands_no_terminal_and_reaches_a_pipe_as_it_is() {
    let sql = "SELECT chr(27) || ']0;pwned' || chr(7) AS \"a\u{1b}[2J\", chr(155) || '2J' AS b";
    let unknown = "SELECT \"\u{1b}[2J\" FROM (SELECT 1 AS a)";
    for arguments in [
        vec!["-c", sql],
        vec!["--format", "csv", "-c", sql],
        vec!["--format", "json", "-c", sql],
        vec!["-c", unknown],
    ] {
        let raw = raw_output(&arguments);
        assert!(raw.contains("[2J"), "{raw:?}");
        for command in ['\u{1b}', '\u{7}', '\u{9b}'] {
            assert!(!raw.contains(command), "{arguments:?}: {raw:?}");
        }
    }
    let piped = Command::new(env!("CARGO_BIN_EXE_flashmesh"))
        .args(["--format", "csv", "-c", sql])
        .output()
        .unwrap();
    let piped = String::from_utf8(piped.stdout).unwrap();
    assert!(
        piped.contains("\u{1b}]0;pwned\u{7}") && piped.contains("\u{9b}2J"),
        "{piped:?}"
    );
}

#[test]
fn statements_are_typed_completed_and_run() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(state.path(), &[], &[]);
    terminal.wait_for("a temporary database; .help for help");
    terminal.wait_for(PROMPT);
    terminal.run("CREATE TABLE planet (name TEXT PRIMARY KEY, moons INT);");
    let inserted = terminal.run("INSERT INTO planet VALUES ('Earth', 1), ('Mars', 2);");
    assert!(inserted.contains("| 2 "), "{inserted}");

    // Names come as soon as the shell has read them: until then Tab rings the bell.
    terminal.type_keys("SELECT name, moo");
    let start = Instant::now();
    loop {
        terminal.type_keys(TAB);
        if terminal.wait_for_any(&["moons", BELL]) == 0 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "Tab completes nothing");
    }
    terminal.type_keys(" FROM pla");
    terminal.type_keys(TAB);
    terminal.wait_for("planet");
    // A statement goes on until its semicolon.
    terminal.type_keys(ENTER);
    let rows = terminal.run("ORDER BY moons DESC;");
    let (mars, earth) = (rows.find("| Mars"), rows.find("| Earth"));
    assert!(mars.is_some() && mars < earth, "{rows}");
    assert!(rows.contains("2 rows"), "{rows}");

    // What the parser of DataFusion's own shell loses.
    terminal.run("CREATE TABLE v AS SELECT value AS id, arrow_cast(make_array(value, -value), 'FixedSizeList(2, Float32)') AS x FROM generate_series(1, 500) s(value);");
    terminal.run("CREATE INDEX near ON v USING lsh (x) WITH (bits = 2, probes = 4);");
    let indexes = terminal.run(".indexes");
    assert!(
        indexes.contains("near") && indexes.contains("ON v USING lsh (x)"),
        "{indexes}"
    );
    assert!(
        indexes.contains("planet_pkey") && indexes.contains("primary key"),
        "{indexes}"
    );
    terminal.run("DROP INDEX near;");
    assert!(!terminal.run(".indexes").contains("near"));
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn errors_point_at_the_place_and_the_shell_goes_on() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(state.path(), &["--quiet"], &[]);
    terminal.wait_for(PROMPT);
    terminal.run("CREATE TABLE planet (name TEXT, moons INT);");
    for (typed, parts) in [
        (
            "SELEC 1;",
            ["1 | SELEC 1\n  | ^^^^^\n", "did you mean SELECT?"],
        ),
        (
            "SELECT name, mons FROM planet;",
            [
                "1 | SELECT name, mons FROM planet\n  |              ^^^^\n",
                "did you mean moons?",
            ],
        ),
        (
            "SELECT * FROM plnaet;",
            [
                "1 | SELECT * FROM plnaet\n  |               ^^^^^^\n",
                "did you mean planet?",
            ],
        ),
        (
            "SELECT summ(moons) FROM planet;",
            [
                "1 | SELECT summ(moons) FROM planet\n  |        ^^^^",
                "Did you mean 'sum'?",
            ],
        ),
        (
            "SELECT * FROM lokup('planet', 1);",
            [
                "1 | SELECT * FROM lokup('planet', 1)\n  |               ^^^^^\n",
                "did you mean lookup?",
            ],
        ),
        (
            "DROP TABLE planets;",
            ["  |            ^^^^^^^\n", "did you mean planet?"],
        ),
        (".tabels", ["there is no command", "did you mean .tables?"]),
    ] {
        let shown = terminal.run(typed);
        for part in parts {
            assert!(shown.contains(part), "{typed}: {part:?} is not in {shown}");
        }
    }
    assert!(terminal.run("SELECT 41 + 1 AS answer;").contains("| 42 "));
    terminal.type_keys(".quit");
    terminal.type_keys(ENTER);
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn ctrl_c_stops_the_statement_and_keeps_the_shell() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(state.path(), &["--quiet"], &[]);
    terminal.wait_for(PROMPT);
    // At the prompt it drops the line.
    terminal.type_keys("SELECT nonsense");
    terminal.type_keys(CTRL_C);
    terminal.wait_for(PROMPT);
    for _ in 0..2 {
        terminal.type_keys(
            "SELECT count(*) FROM generate_series(1, 10000000000) AS s(v) WHERE v % 3 = 7; SELECT 'never' || 'run';",
        );
        terminal.type_keys(ENTER);
        // The progress line: the statement runs.
        terminal.wait_for_any(&[" 0 s", " 1 s", " 2 s", " 3 s"]);
        terminal.type_keys(CTRL_C);
        terminal.wait_for("interrupted");
        let rest = terminal.wait_for(PROMPT);
        assert!(!rest.contains("neverrun"), "{rest}");
    }
    assert!(terminal.run("SELECT 41 + 1 AS answer;").contains("| 42 "));
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn commands_change_what_is_printed() {
    let state = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = state.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let rows = file("moons.csv", "planet,moon\nMars,Phobos\nMars,Deimos\n");
    let script = file(
        "script.sql",
        "SELECT 'fr' || 'om' AS file;\n.mode json\nSELECT 1 AS a",
    );
    let pager = file("pager.sh", "echo \"$(wc -l) lines in the pager\"\n");
    let pager = format!("sh {pager}");
    let mut terminal = Terminal::start(state.path(), &["--quiet"], &[("PAGER", &pager)]);
    terminal.wait_for(PROMPT);
    assert!(terminal.run(".help").contains(".import FILE TABLE"));
    for _ in 0..2 {
        assert!(
            terminal
                .run(&format!(".import {rows} moon"))
                .contains("added to moon")
        );
    }
    assert!(terminal.run(".tables").contains("4 rows"));
    let schema = terminal.run(".schema moon");
    assert!(schema.contains("planet  Utf8View"), "{schema}");
    assert!(terminal.run(".schema mon").contains("did you mean moon?"));

    // 40 rows are more than the window has.
    let shown = terminal.run("SELECT * FROM generate_series(1, 40);");
    assert!(shown.contains("44 lines in the pager"), "{shown}");
    assert!(
        !terminal
            .run("SELECT * FROM generate_series(1, 5);")
            .contains("pager")
    );
    terminal.run(".maxrows 3");
    let shown = terminal.run("SELECT * FROM generate_series(101, 140);");
    assert!(
        shown.contains("| 103 ") && !shown.contains("104"),
        "{shown}"
    );

    terminal.run(".mode csv");
    let shown = terminal.run("SELECT planet, moon FROM moon WHERE moon LIKE 'D%';");
    assert!(
        shown.contains("planet,moon\nMars,Deimos\nMars,Deimos\n"),
        "{shown}"
    );
    assert!(!shown.contains(" s\n"), "{shown}");
    terminal.run(".timer on");
    let shown = terminal.run(&format!(".read {script}"));
    assert!(shown.contains("file\nfrom\n"), "{shown}");
    assert!(shown.contains("[{\"a\":1}]"), "{shown}");
    assert!(shown.contains(" s\n"), "{shown}");
    assert!(terminal.run(".mode jsno").contains("did you mean json?"));
    assert!(terminal.run(".read nowhere.sql").contains("nowhere.sql"));
    terminal.type_keys("quit");
    terminal.type_keys(ENTER);
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn the_history_outlives_the_shell() {
    let state = tempfile::tempdir().unwrap();
    let arguments = ["--quiet"];
    let mut terminal = Terminal::start(state.path(), &arguments, &[]);
    terminal.wait_for(PROMPT);
    terminal.type_keys("SELECT 40 + 2 AS\nanswer;\n");
    terminal.wait_for("| 42 ");
    terminal.wait_for(PROMPT);
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end(), Some(0));
    assert!(state.path().join("flashmesh/history").is_file());

    let mut terminal = Terminal::start(state.path(), &arguments, &[]);
    terminal.wait_for(PROMPT);
    terminal.type_keys(UP);
    terminal.wait_for("answer;");
    terminal.type_keys(ENTER);
    terminal.wait_for("| 42 ");
    terminal.wait_for(PROMPT);
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end(), Some(0));
}
