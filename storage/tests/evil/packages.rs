//! Package files and manifests that nobody's tool has made.

use bytes::Bytes;
use flashmesh_storage::StorageError;
use flashmesh_storage::kernel::{Manifest, Package};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::harness::watched;

const WASM: &[u8] = b"\0asm\x01\0\0\0";
const MANIFEST: &str = "[kernel]\nname = 'evil'\nkind = 'scalar'\nversion = '1.0.0'\n\
                        signature = '(x BIGINT) RETURNS BIGINT'\n";

/// A custom section.
fn section(name: &[u8], content: &[u8]) -> Vec<u8> {
    let mut body = number(name.len());
    body.extend_from_slice(name);
    body.extend_from_slice(content);
    let mut section = vec![0];
    section.extend(number(body.len()));
    section.extend(body);
    section
}

/// LEB128.
fn number(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn refused(name: &str, file: Vec<u8>, reason: &str) {
    let outcome = watched(name, move || Package::parse(Bytes::from(file)).map(|_| ()));
    assert_refused(name, outcome, reason);
}

fn assert_refused(name: &str, outcome: Result<(), StorageError>, reason: &str) {
    let Err(StorageError::Invalid(text)) = outcome else {
        panic!("{name}: {outcome:?}");
    };
    assert!(text.contains(reason), "{name}: {text}");
    assert!(!text.contains(char::is_control), "{name}: {text:?}");
    assert!(text.len() < 1000, "{name}: {} bytes of message", text.len());
}

#[test]
fn files() {
    let digest = "ab".repeat(32);
    let good = [
        section(b"flashmesh.manifest", MANIFEST.as_bytes()),
        section(b"flashmesh.source", digest.as_bytes()),
    ]
    .concat();
    let file = |sections: &[u8]| [WASM, sections].concat();
    Package::parse(file(&good).into()).unwrap();
    let with = |more: Vec<u8>| file(&[good.clone(), more].concat());
    let manifest = |bytes: &[u8]| {
        let source = section(b"flashmesh.source", digest.as_bytes());
        file(&[section(b"flashmesh.manifest", bytes), source].concat())
    };
    let source = |text: &[u8]| {
        let manifest = section(b"flashmesh.manifest", MANIFEST.as_bytes());
        file(&[manifest, section(b"flashmesh.source", text)].concat())
    };
    let cut = "longer than the file";
    for (name, file, reason) in [
        ("nothing", vec![], "no WebAssembly module"),
        (
            "a tar file",
            b"ustar\x0000".repeat(100),
            "no WebAssembly module",
        ),
        (
            "an ELF file",
            b"\x7fELF\x02\x01\x01\0".to_vec(),
            "no WebAssembly module",
        ),
        (
            "a component",
            b"\0asm\x0d\0\x01\0".to_vec(),
            "no WebAssembly module",
        ),
        ("text", b"(module)".to_vec(), "no WebAssembly module"),
        (
            "an empty module",
            WASM.to_vec(),
            "flashmesh.manifest is missing",
        ),
        (
            "no source",
            file(&section(b"flashmesh.manifest", MANIFEST.as_bytes())),
            "source is missing",
        ),
        ("65 MiB", [WASM, &vec![0; 65 << 20]].concat(), "at most"),
        (
            "a forged length",
            with(vec![0, 0xff, 0xff, 0xff, 0xff, 0x0f]),
            cut,
        ),
        (
            "a length of 64 bits",
            with([vec![0], vec![0x80; 9], vec![1]].concat()),
            cut,
        ),
        (
            "a length that overflows",
            with(vec![0, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            cut,
        ),
        (
            "a name longer than its section",
            with(vec![0, 2, 200, b'x']),
            cut,
        ),
        ("a custom section without a name", with(vec![0, 0]), cut),
        ("a byte too many", with(vec![0]), cut),
        (
            "two manifests",
            with(section(b"flashmesh.manifest", MANIFEST.as_bytes())),
            "twice",
        ),
        (
            "two sources",
            with(section(b"flashmesh.source", digest.as_bytes())),
            "twice",
        ),
        (
            "an unknown section",
            with(section(b"flashmesh.\x1b[2J", b"")),
            "does not know",
        ),
        (
            "a long unknown name",
            with(section(
                &[b"flashmesh.", &vec![b'x'; 1 << 20][..]].concat(),
                b"",
            )),
            "does not know",
        ),
        (
            "code behind the manifest",
            with(vec![10, 1, 0]),
            "have to be the last",
        ),
        (
            "a name section behind",
            with(section(b"name", b"")),
            "have to be the last",
        ),
        (
            "a manifest that is not UTF-8",
            manifest(&[0xff; 100]),
            "not UTF-8",
        ),
        (
            "a manifest of 65 KiB",
            manifest(&[b'#'; 65 << 10]),
            "65536 is the limit",
        ),
        ("a manifest of zeros", manifest(&[0; 1000]), "kernel.toml"),
        ("a short digest", source(b"abcd"), "no SHA-256"),
        (
            "a digest in capitals",
            source("AB".repeat(32).as_bytes()),
            "no SHA-256",
        ),
        (
            "a digest that is none",
            source("xy".repeat(32).as_bytes()),
            "no SHA-256",
        ),
        (
            "100,000 empty sections",
            file(&section(b"", b"").repeat(100_000)),
            "manifest is missing",
        ),
    ] {
        refused(name, file, reason);
    }
}

#[test]
fn sections_that_lie_are_not_looked_at() {
    // Names of functions, producers, debug information: nobody reads them.
    let lies = [
        section(b"name", &[1, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        section(b".debug_info", &[0xff; 1000]),
        section(b"\xff\xfe", b""),
        section(b"producers", b"\x80\x80\x80\x80\x80\x80"),
    ]
    .concat();
    let module = wat::parse_str(
        "(module (memory (export \"memory\") 1) (func (export \"evil\") (param i32 i32 i32)))",
    )
    .unwrap();
    let sandbox = crate::harness::sandbox();
    let package = Package::new(MANIFEST, &[module, lies].concat(), None, [0; 32]).unwrap();
    sandbox.compile(&package, &[]).unwrap();
}

#[test]
fn manifests() {
    let replaced = |old: &str, new: &str| {
        let text = MANIFEST.replacen(old, new, 1);
        assert_ne!(text, MANIFEST);
        text
    };
    let name = |name: &str| replaced("'evil'", name);
    let parameters: String = (0..33).map(|i| format!("p{i} BIGINT, ")).collect();
    let columns: String = (0..65).map(|i| format!("c{i} BIGINT, ")).collect();
    let letters = "lower-case letter";
    for (what, text, reason) in [
        ("nothing", String::new(), "[kernel] is missing"),
        ("a gigantic manifest", "#".repeat(10 << 20), "65536 at most"),
        (
            "deep arrays",
            format!("x = {}", "[".repeat(30_000)),
            "line 1",
        ),
        (
            "deep tables",
            format!("x = {}", "{a=".repeat(20_000)),
            "line 1",
        ),
        (
            "deep keys",
            format!("{}x = 1", "a.".repeat(30_000)),
            "kernel.toml",
        ),
        (
            "deep headers",
            format!("[{}x]", "a.".repeat(30_000)),
            "kernel.toml",
        ),
        (
            "many keys",
            (0..6000).map(|i| format!("k{i}=1\n")).collect(),
            "is missing",
        ),
        (
            "a key twice",
            replaced("version", "name = 'other'\nversion"),
            "line",
        ),
        (
            "a long name",
            name(&format!("'{}'", "a".repeat(64))),
            letters,
        ),
        (
            "a very long name",
            name(&format!("'{}'", "a".repeat(60_000))),
            letters,
        ),
        ("no name", name("''"), letters),
        ("a path as a name", name("'../../etc/passwd'"), letters),
        ("SQL in a name", name("'a; DROP TABLE t'"), letters),
        ("a terminal's codes", name("\"\\u001b[31mred\""), letters),
        ("right to left", name("'a\u{202e}b'"), letters),
        ("look-alikes", name("'evi\u{217c}'"), letters),
        ("a zero byte", name("\"evil\\u0000\""), letters),
        (
            "a name that is a table",
            name("{ a = 1 }"),
            "kernel.name is table",
        ),
        (
            "code in top",
            replaced("version", "top = 'f(); g'\nversion"),
            "a C function",
        ),
        (
            "a path out of the folder",
            replaced("version", "sources = ['a/../../b']\nversion"),
            "sources",
        ),
        (
            "a command in sources",
            replaced("version", "sources = ['$(id).cpp']\nversion"),
            "sources",
        ),
        (
            "sources without end",
            replaced(
                "version",
                &format!("sources = [{}]\nversion", "'a',".repeat(65)),
            ),
            "64 texts",
        ),
        (
            "33 parameters",
            replaced("x BIGINT", &format!("{parameters}x BIGINT")),
            "more than 32",
        ),
        (
            "a parameter twice",
            replaced("x BIGINT", "x BIGINT, x BIGINT"),
            "two parameters named",
        ),
        (
            "a long parameter",
            replaced("x BIGINT", &format!("{} BIGINT", "x".repeat(64))),
            "63 at most",
        ),
        (
            "a parameter named rows",
            replaced("x BIGINT", "rows BIGINT"),
            "two arguments",
        ),
        (
            "a hidden collision",
            replaced("x BIGINT", "x TEXT, x_bytes BIGINT"),
            "two arguments",
        ),
        (
            "a nested type",
            replaced("x BIGINT", &format!("x FLOAT{}", "[".repeat(4000))),
            "length",
        ),
        (
            "a giant vector",
            replaced("x BIGINT", "x FLOAT[4294967295]"),
            "1 to 65536",
        ),
        (
            "a long signature",
            replaced("x BIGINT", &format!("x BIGINT{}", " ".repeat(9000))),
            "longer than",
        ),
        (
            "65 columns",
            replaced(
                "RETURNS BIGINT",
                &format!("RETURNS TABLE ({columns}x BIGINT)"),
            ),
            "more than 64",
        ),
        (
            "a giant number",
            format!("{MANIFEST}[limits]\nmemory_bytes = 9223372036854775807\n"),
            "write a whole",
        ),
        (
            "beyond 64 bits",
            format!("{MANIFEST}[limits]\nmemory_bytes = 99999999999999999999\n"),
            "line",
        ),
        (
            "a negative number",
            format!("{MANIFEST}[limits]\ntime_per_call_ms = -1\n"),
            "is -1",
        ),
        (
            "a float",
            format!("{MANIFEST}[limits]\nrows_per_call = 64.0\n"),
            "is float",
        ),
        (
            "not a number",
            format!("{MANIFEST}[intent]\nbytes_per_cycle = nan\n"),
            "a number above 0",
        ),
        (
            "a day of time",
            format!("{MANIFEST}[limits]\ntime_per_call_ms = 86400000\n"),
            "to 60000",
        ),
        (
            "itself",
            format!("{MANIFEST}[calls]\nkernels = ['evil']\n"),
            "itself",
        ),
        (
            "a bank that is code",
            format!("{MANIFEST}[fpga.banks]\nx = \"DDR[0]\\n--jobs 99\"\n"),
            "write a bank",
        ),
        (
            "a state without end",
            replaced("version", "state_words = 1000000\nversion").replace("scalar", "aggregate"),
            "to 8192",
        ),
        (
            "an unknown table",
            format!("{MANIFEST}[permissions]\nfiles = '*'\n"),
            "no key",
        ),
        (
            "an odd key",
            format!("{MANIFEST}[limits]\n\"\\u001b[2J\" = 1\n"),
            "no key",
        ),
    ] {
        let outcome = watched(what, move || Manifest::parse(&text).map(|_| ()));
        assert_refused(what, outcome, reason);
    }
}

#[test]
fn random_changes_of_a_manifest_do_no_harm() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let pieces = [
        "[",
        "]",
        "'",
        "=",
        "\n",
        "kernel",
        "(",
        ")",
        "FLOAT",
        "[[argument]]",
        "{",
        "é",
    ];
    for _ in 0..3000 {
        let mut text: Vec<char> = MANIFEST.chars().collect();
        for _ in 0..random.random_range(1..5) {
            let at = random.random_range(0..text.len());
            let until = random.random_range(at..(at + 8).min(text.len()));
            let piece = pieces[random.random_range(0..pieces.len())];
            text.splice(at..until, piece.chars());
        }
        let _ = Manifest::parse(&text.into_iter().collect::<String>());
    }
}
