//! Writes what the model of the appliance gives into docs: `cargo xtask figures`.

use std::path::Path;
use std::{env, fs, io};

use flashmesh_cluster::model::Parameters;
use flashmesh_cluster::model::figures::{committed, figures};

fn main() -> io::Result<()> {
    let docs = env::args().nth(1).unwrap_or_else(|| "docs".into());
    let docs = Path::new(&docs);
    fs::create_dir_all(docs.join("figures"))?;
    let p = Parameters::default();
    let figures = figures(&p);
    let model = fs::read_to_string(docs.join("model.md"))?;
    for (path, text) in committed(&p, &figures, &model).map_err(io::Error::other)? {
        fs::write(docs.join(&path), text)?;
        println!("{}", docs.join(path).display());
    }
    Ok(())
}
