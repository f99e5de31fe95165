//! What is committed in docs is what the model gives.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use super::super::Parameters;
use super::super::figures::{Claim, Figure, Proof, committed, figures, svg};

static FIGURES: LazyLock<Vec<Figure>> = LazyLock::new(|| figures(&Parameters::default()));

/// Clones that share a target directory share this program: where it was compiled says nothing.
fn docs() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    PathBuf::from(package).join("../docs")
}

#[test]
fn committed_tables_and_plots_are_what_the_model_gives() {
    let p = Parameters::default();
    let figures = &*FIGURES;
    let model = fs::read_to_string(docs().join("model.md")).unwrap();
    let files = committed(&p, figures, &model).unwrap();
    for (path, expected) in &files {
        let found = fs::read_to_string(docs().join(path)).unwrap_or_default();
        assert!(
            found == *expected,
            "docs/{path} is not what the model gives: cargo xtask figures"
        );
    }
    for entry in fs::read_dir(docs().join("figures")).unwrap() {
        let name = entry.unwrap().file_name();
        let path = format!("figures/{}", name.to_string_lossy());
        assert!(
            files.iter().any(|(made, _)| *made == path),
            "docs/{path} is of no figure"
        );
    }
    for figure in figures {
        assert!(svg(figure).contains("(modelled)"), "{}", figure.id);
    }
    assert!(committed(&p, figures, "no marks").is_err());
}

/// Parameters that are named are there, those that are there are named, and what is fitted names
/// one that is calibrated.
#[test]
fn every_parameter_has_a_source_and_a_use() {
    let p = Parameters::default();
    let table = p.table();
    let figures = &*FIGURES;
    for figure in figures {
        for name in figure.parameters {
            let known = table.iter().any(|parameter| parameter.name == *name);
            assert!(known, "{}: {name}", figure.id);
        }
    }
    // Of the appliance alone: no figure writes.
    let others = ["flash_program", "flash_erase", "block_pages"];
    for parameter in &table {
        assert!(!parameter.source.is_empty() && parameter.value > 0.0);
        let used = figures
            .iter()
            .any(|f| f.parameters.contains(&parameter.name));
        assert!(
            used != others.contains(&parameter.name),
            "{}",
            parameter.name
        );
    }
}

/// The figures that the project's plan names, and what their texts state, within a tenth.
#[test]
fn what_the_papers_state_comes_out() {
    let figures = &*FIGURES;
    let row = |id: &str, what: &str| {
        let figure = figures.iter().find(|figure| figure.id == id).expect(id);
        let row = figure.rows.iter().find(|row| row.what == what);
        row.unwrap_or_else(|| panic!("{id}: {what}"))
    };
    for (id, what, stated) in [
        ("bluedbm-11", "bandwidth, 5 hops", 8.2),
        ("bluedbm-11", "latency, 1 hop", 0.48),
        ("bluedbm-13", "Host-Local", 1.6),
        ("bluedbm-13", "ISP-Local", 2.4),
        ("bluedbm-13", "ISP-2Nodes", 3.4),
        ("bluedbm-13", "ISP-3Nodes", 6.5),
        ("bluedbm-16", "Baseline", 320.0),
        ("bluedbm-16", "H-DRAM, 8 threads", 350.0),
        ("bluedbm-21", "in-store", 1.1),
        ("bluedbm-table-3", "node", 240.0),
        ("minerva-10", "Minerva / Moneta-D", 15.7),
        ("minerva-table-4", "Get, speedup", 7.45),
        ("minerva-table-4", "Put, speedup", 9.85),
    ] {
        let row = row(id, what);
        assert_eq!(row.claim, Claim::About(stated), "{id}: {what}");
        assert!(row.fits(), "{row:?}");
    }
    // No more parameters are fitted than there are numbers that they were fitted to.
    let fitted = figures.iter().flat_map(|figure| &figure.rows);
    let fitted = fitted.filter(|row| row.proof == Proof::Fitted).count();
    let table = Parameters::default().table();
    let calibrated = table
        .iter()
        .filter(|parameter| parameter.origin == super::super::Origin::Calibrated);
    assert_eq!(fitted, calibrated.count());
}
