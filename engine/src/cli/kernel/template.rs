//! `flashmesh kernel new`: a kernel to begin with.

use std::process::ExitCode;

use crate::{Error, Result};
use flashmesh_storage::kernel::{Kind, Manifest};

use super::super::arguments::KernelNewArguments;
use super::files::MANIFEST;

pub(super) fn write(arguments: &KernelNewArguments) -> Result<ExitCode> {
    let name = &arguments.name;
    let folder = match &arguments.folder {
        Some(folder) => folder.clone(),
        None => name.into(),
    };
    if folder.exists() {
        return Err(Error::usage(format!(
            "{} is there already; choose another name, or --dir",
            folder.display()
        )));
    }
    let kind = Kind::from(arguments.kind);
    let (signature, extra, reference) = what(kind);
    let source = source(kind).replace("NAME", name);
    let manifest = format!(
        "# docs/kernels.md tells what may stand here.\n\
         [kernel]\n\
         name = \"{name}\"\n\
         kind = \"{kind}\"\n\
         version = \"0.1.0\"\n\
         description = \"\"\n\
         signature = \"{signature}\"\n\
         sources = [\"kernel.cpp\"]\n{extra}{reference}",
    );
    // What is made here can be built: a name that is none is found before anything is written.
    Manifest::parse(&manifest)?;
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join(MANIFEST), manifest))
        .and_then(|()| std::fs::write(folder.join("kernel.cpp"), source));
    written.map_err(|e| Error::io(format!("writing {}", folder.display()), e))?;
    println!(
        "{0}/{MANIFEST}\n{0}/kernel.cpp\n\nflashmesh kernel test {0}\nflashmesh kernel build {0}",
        folder.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Signature, further keys, and the reference of tests.
fn what(kind: Kind) -> (&'static str, &'static str, &'static str) {
    match kind {
        Kind::Scalar => (
            "(x DOUBLE, factor DOUBLE CONSTANT) RETURNS DOUBLE",
            "",
            "\n[test]\nreference = \"x * factor\"\n",
        ),
        Kind::Filter => (
            "(x DOUBLE, low DOUBLE CONSTANT, high DOUBLE CONSTANT) RETURNS BOOLEAN",
            "",
            "\n[test]\nreference = \"x BETWEEN low AND high\"\n",
        ),
        Kind::Aggregate => (
            "(x BIGINT) RETURNS BIGINT",
            "state_words = 2\n",
            "\n[test]\nreference = \"max(x)\"\n",
        ),
        Kind::Distance => ("(a FLOAT[], b FLOAT[]) RETURNS DOUBLE", "", ""),
        Kind::Search => (
            "(text TEXT, pattern TEXT CONSTANT) RETURNS BOOLEAN",
            "",
            "\n[test]\nreference = \"strpos(text, pattern) > 0\"\n",
        ),
        Kind::Table => (
            "() RETURNS TABLE (first_row BIGINT, row_count BIGINT)",
            "",
            "",
        ),
    }
}

fn source(kind: Kind) -> &'static str {
    match kind {
        Kind::Scalar => include_str!("templates/scalar.cpp"),
        Kind::Filter => include_str!("templates/filter.cpp"),
        Kind::Aggregate => include_str!("templates/aggregate.cpp"),
        Kind::Distance => include_str!("templates/distance.cpp"),
        Kind::Search => include_str!("templates/search.cpp"),
        Kind::Table => include_str!("templates/table.cpp"),
    }
}
