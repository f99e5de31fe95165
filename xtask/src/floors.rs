//! What stands on what: a module of a crate uses only those that its table in `lib.rs` lists above
//! it, so that no two lean on each other.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{Error, Result};

/// Crates whose `lib.rs` lists its modules from the ground up.
const CRATES: [&str; 2] = ["storage/pages", "storage"];

/// Checks the arrows of all [`CRATES`].
pub fn check(root: &Path) -> Result<()> {
    let mut wrong = Vec::new();
    for of in CRATES {
        let source = root.join(of).join("src");
        let lib = fs::read_to_string(source.join("lib.rs"))?;
        let floors: Vec<&str> = lib.lines().filter_map(listed).collect();
        for module in lib.lines().filter_map(declared) {
            if !floors.contains(&module) && !is_private(&lib, module) {
                wrong.push(format!("{of}/src/lib.rs: '{module}' is not in the table"));
            }
        }
        for (floor, module) in floors.iter().enumerate() {
            for file in files_of(&source, module)? {
                let text = fs::read_to_string(&file)?;
                for (number, used) in uses(&text) {
                    if floors[floor + 1..].contains(&used) {
                        let place = file.strip_prefix(root).unwrap_or(&file).display();
                        wrong.push(format!(
                            "{place}:{number}: '{module}' uses '{used}', which stands on it"
                        ));
                    }
                }
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Error::new(format!(
            "arrows that run upwards (see the table in lib.rs):\n{}",
            wrong.join("\n")
        ))),
    }
}

/// The module of a line of the table.
fn listed(line: &str) -> Option<&str> {
    line.strip_prefix("//! | [`")?.split('`').next()
}

fn declared(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    line.strip_prefix("mod ")?.strip_suffix(';')
}

/// Modules of helpers, which the table leaves out.
fn is_private(lib: &str, module: &str) -> bool {
    lib.lines().any(|line| line == format!("mod {module};"))
}

/// The files of a module without those of its tests.
fn files_of(source: &Path, module: &str) -> Result<Vec<PathBuf>> {
    let mut files = vec![source.join(module).with_extension("rs")];
    files.retain(|file| file.exists());
    let mut folders = vec![source.join(module)];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.file_stem().is_some_and(|name| name == "tests") {
                continue;
            }
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    Ok(files)
}

/// The modules that lines of code name as `crate::module`, with their lines' numbers, up to the
/// unit tests.
fn uses(text: &str) -> Vec<(usize, &str)> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    let lines = code.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
    let named = lines.flat_map(|(number, line)| {
        let after = line.split("crate::").skip(1);
        after.map(move |rest| {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            (number + 1, &rest[..end])
        })
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_upwards_is_named_with_its_line() {
        let root = tempfile::tempdir().unwrap();
        for of in CRATES {
            let source = root.path().join(of).join("src");
            fs::create_dir_all(source.join("upper")).unwrap();
            let lib =
                "//! | [`lower`] | x |\n//! | [`upper`] | x |\npub mod lower;\npub mod upper;\n";
            fs::write(source.join("lib.rs"), lib).unwrap();
            fs::write(source.join("upper/mod.rs"), "use crate::lower::A;\n").unwrap();
            fs::write(source.join("lower.rs"), "// crate::upper\n").unwrap();
        }
        check(root.path()).unwrap();
        let lower = root.path().join("storage/src/lower.rs");
        fs::write(&lower, "struct A;\nfn f() { crate::upper::g() }\n").unwrap();
        let message = check(root.path()).unwrap_err().to_string();
        assert!(
            message.contains("storage/src/lower.rs:2: 'lower' uses 'upper'"),
            "{message}"
        );
        fs::write(lower, "#[cfg(test)]\nmod tests {\nuse crate::upper;\n}\n").unwrap();
        check(root.path()).unwrap();
    }
}
