//! What stands on what: a module of a crate uses only those on the floors below its own, so that no
//! two lean on each other.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{Error, Result};

/// Crates whose `lib.rs` lists its modules from the ground up: in a table, one on each floor, or in
/// groups of `mod` lines, of which each is a floor.
const CRATES: [&str; 3] = ["storage/pages", "storage", "engine"];

/// Checks the arrows of all [`CRATES`].
pub fn check(root: &Path) -> Result<()> {
    let mut wrong = Vec::new();
    for of in CRATES {
        let source = root.join(of).join("src");
        let lib = fs::read_to_string(source.join("lib.rs"))?;
        let floors = floors(&lib);
        let floor_of = |module: &str| floors.iter().position(|floor| floor.contains(&module));
        let handed_on = handed_on(&lib);
        for module in lib.lines().filter_map(declared) {
            if floor_of(module).is_none() && !is_private(&lib, module) {
                wrong.push(format!("{of}/src/lib.rs: '{module}' is not in the table"));
            }
        }
        for module in floors.concat() {
            for file in files_of(&source, module)? {
                let text = fs::read_to_string(&file)?;
                for (number, used) in uses(&text) {
                    let of_module = handed_on.iter().find(|(name, _)| *name == used);
                    let used = of_module.map_or(used, |(_, module)| module);
                    if used != module && floor_of(used) >= floor_of(module) {
                        let place = file.strip_prefix(root).unwrap_or(&file).display();
                        wrong.push(format!(
                            "{place}:{number}: '{module}' uses '{used}', which does not stand below it"
                        ));
                    }
                }
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Error::new(format!(
            "arrows that do not run downwards (see lib.rs):\n{}",
            wrong.join("\n")
        ))),
    }
}

/// The modules of each floor: of the table, or of the groups of declarations where there is none.
fn floors(lib: &str) -> Vec<Vec<&str>> {
    let table: Vec<_> = lib.lines().filter_map(listed).map(|m| vec![m]).collect();
    if !table.is_empty() {
        return table;
    }
    let groups = lib.split("\n\n");
    let groups = groups.map(|group| group.lines().filter_map(declared).collect());
    groups.filter(|floor: &Vec<_>| !floor.is_empty()).collect()
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

/// The names that `lib.rs` hands on, each with its module.
fn handed_on(lib: &str) -> Vec<(&str, &str)> {
    let handed_on = lib.split("\npub use ").skip(1).flat_map(|rest| {
        let path = rest.split(';').next().unwrap_or(rest);
        let (module, names) = path.split_once("::").unwrap_or((path, ""));
        let names = names.split(|c| !is_of_name(c));
        names.map(move |name| (name, module))
    });
    handed_on.filter(|(name, _)| !name.is_empty()).collect()
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

/// What code names as `crate::…`, with the lines' numbers, up to the unit tests.
fn uses(text: &str) -> Vec<(usize, &str)> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    let mut uses = Vec::new();
    for (place, path) in code.match_indices("crate::") {
        let line = code[..place].rfind('\n').map_or(0, |end| end + 1);
        if code[line..].trim_start().starts_with("//") {
            continue;
        }
        let number = code[..place].matches('\n').count() + 1;
        let names = first_names(&code[place + path.len()..]);
        uses.extend(names.into_iter().map(|name| (number, name)));
    }
    uses
}

/// The first name of a path, or of each path of a group in braces.
fn first_names(path: &str) -> Vec<&str> {
    let first = |path: &'_ str| path.find(|c| !is_of_name(c)).unwrap_or(path.len());
    if !path.starts_with('{') {
        return vec![&path[..first(path)]];
    }
    let (mut depth, mut names) = (0, Vec::new());
    for (place, c) in path.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && matches!(c, '{' | ',') {
            let path = path[place + 1..].trim_start();
            names.push(&path[..first(path)]);
        }
    }
    names
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "//! | [`lower`] | x |\n//! | [`upper`] | x |\npub mod lower;\npub mod upper;\n";
    const GROUPS: &str = "// Lower.\nmod beside;\nmod lower;\n\n// Upper.\npub mod upper;\n\npub use upper::{A, B};\n";

    #[test]
    fn an_arrow_upwards_is_named_with_its_line() {
        let root = tempfile::tempdir().unwrap();
        for of in CRATES {
            let source = root.path().join(of).join("src");
            fs::create_dir_all(source.join("upper")).unwrap();
            let lib = if of == "engine" { GROUPS } else { TABLE };
            fs::write(source.join("lib.rs"), lib).unwrap();
            fs::write(source.join("upper/mod.rs"), "use crate::lower::A;\n").unwrap();
            fs::write(source.join("lower.rs"), "// crate::upper\n").unwrap();
        }
        check(root.path()).unwrap();
        for (of, code, used) in [
            (
                "storage",
                "struct A;\nfn f() { crate::upper::g() }\n",
                "upper",
            ),
            (
                "engine",
                "\nuse crate::{\n    lower::{B, C}, upper,\n};\n",
                "upper",
            ),
            ("engine", "\nuse crate::B;\n", "upper"),
            ("engine", "\nuse crate::beside::D;\n", "beside"),
        ] {
            let lower = root.path().join(of).join("src/lower.rs");
            fs::write(&lower, code).unwrap();
            let message = check(root.path()).unwrap_err().to_string();
            let expected = format!("{of}/src/lower.rs:2: 'lower' uses '{used}'");
            assert!(message.contains(&expected), "{message}");
            fs::write(lower, "#[cfg(test)]\nmod tests {\nuse crate::upper;\n}\n").unwrap();
            check(root.path()).unwrap();
        }
    }
}
