//! Results that are larger than the terminal go through a pager.

use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};

/// What shows the text when `$PAGER` says nothing: as much as fits stays on the screen, colours
/// and long lines as they are.
const DEFAULT_PAGER: &str = "less -SRFX";

/// Shows `text` in the user's pager, if it does not fit into the terminal that standard output is;
/// FALSE when that is for the caller to do.
///
/// `$PAGER` names the pager and its options; empty or `cat`: there is none.
pub(in crate::cli) fn show(text: &str) -> io::Result<bool> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Ok(false);
    }
    let (rows, columns) = console::Term::stdout().size();
    if fits(text, rows.into(), columns.into()) {
        return Ok(false);
    }
    let pager = std::env::var("PAGER").unwrap_or_else(|_| DEFAULT_PAGER.into());
    let mut words = pager.split_whitespace();
    let Some(program) = words.next().filter(|program| *program != "cat") else {
        return Ok(false);
    };
    let spawned = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .spawn();
    // Without a pager the text goes where it went before there were pagers.
    let Ok(mut child) = spawned else {
        return Ok(false);
    };
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(text.as_bytes()) {
            // The user has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            other => other?,
        }
    }
    child.wait()?;
    Ok(true)
}

/// Whether a text can be seen at once, with a line left for the prompt.
fn fits(text: &str, rows: usize, columns: usize) -> bool {
    let mut lines = 0;
    text.lines().all(|line| {
        lines += 1;
        lines < rows && console::measure_text_width(line) <= columns
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_leaves_room_for_the_prompt() {
        assert!(fits("a\nb\n", 3, 1));
        assert!(!fits("a\nb\nc\n", 3, 1));
        assert!(!fits("ab\n", 3, 1));
        assert!(!fits("日本\n", 3, 3));
    }
}
