//! How the binary and the Python module are linked.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = env::var("TARGET").unwrap_or_default();
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let has_own_linker = env::var_os("RUSTC_LINKER").is_some() || flags.contains("link");
    // There rustc brings its own linker, which knows these flags; others may not.
    if target != "x86_64-unknown-linux-gnu" || has_own_linker {
        return;
    }
    // DataFusion and its parser are, for the better half, the same functions over and over: each
    // part of each crate has copies of what is inline or generic. Folded they are one. Nothing in
    // Rust may depend on the addresses of functions.
    let flags = ["-Wl,--icf=all", "-Wl,--compress-debug-sections=zlib"];
    for flag in flags {
        println!("cargo::rustc-link-arg-bins={flag}");
        println!("cargo::rustc-link-arg-cdylib={flag}");
    }
}
