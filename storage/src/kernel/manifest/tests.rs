use super::*;

const PRICE_BAND: &str = r#"
[kernel]
name = "price_band"
kind = "filter"
version = "1.0.0"
description = "TRUE where low <= price <= high."
signature = "(price DOUBLE, low DOUBLE CONSTANT, high DOUBLE CONSTANT) RETURNS BOOLEAN"
sources = ["kernel.cpp"]
"#;

#[test]
fn the_documented_manifest_parses_with_its_defaults() {
    let manifest = Manifest::parse(PRICE_BAND).unwrap();
    assert_eq!(manifest.name, "price_band");
    assert_eq!(manifest.kind, Kind::Filter);
    assert_eq!(manifest.nulls, Nulls::Strict);
    assert_eq!(manifest.limits.rows_per_call, 8192);
    assert_eq!(manifest.limits.bytes_per_call, 1 << 20);
    assert_eq!(manifest.limits.memory_bytes, 16 << 20);
    assert_eq!(manifest.limits.time_per_call, Duration::from_millis(500));
    assert_eq!(
        manifest.functions()[0].to_string(),
        "void price_band(const double *price, double low, double high, uint32_t rows, uint64_t \
         *selection)"
    );
}

/// The C declarations of `kind` with `signature`, further keys of `[kernel]` behind it.
fn declarations(kind: &str, signature: &str, keys: &str) -> Vec<String> {
    let text = format!(
        "[kernel]\nname = 'f'\nkind = '{kind}'\nversion = '0.1.0'\nsignature = '{signature}'\n{keys}"
    );
    let manifest = Manifest::parse(&text).unwrap();
    let functions = manifest.functions();
    functions.iter().map(ToString::to_string).collect()
}

#[test]
fn c_functions_follow_from_signatures() {
    assert_eq!(
        declarations(
            "scalar",
            "(t TEXT, p TEXT CONSTANT, v FLOAT[3], b BYTES[2] CONSTANT, d DECIMAL(9, 2)) RETURNS TEXT",
            "nulls = 'kernel'",
        ),
        [
            "void f(const uint32_t *t_offsets, const uint8_t *t_bytes, const uint64_t *t_valid, \
             const uint8_t *p, uint32_t p_length, const float *v, const uint64_t *v_valid, \
             const uint8_t *b, const int64_t *d, const uint64_t *d_valid, uint32_t rows, \
             uint32_t *result_offsets, uint8_t *result_bytes, uint32_t result_capacity, \
             uint64_t *result_valid)"
        ]
    );
    assert_eq!(
        declarations(
            "search",
            "(text TEXT, pattern TEXT CONSTANT) RETURNS INTEGER",
            ""
        ),
        [
            "void f(const uint32_t *text_offsets, const uint8_t *text_bytes, const uint8_t \
             *pattern, uint32_t pattern_length, uint32_t rows, uint32_t *positions)"
        ]
    );
    assert_eq!(
        declarations("distance", "(a FLOAT[], b FLOAT[]) RETURNS DOUBLE", ""),
        [
            "void f(const float *a, const float *b, uint32_t dimension, uint32_t rows, double \
             *result)"
        ]
    );
    assert_eq!(
        declarations(
            "aggregate",
            "(x SMALLINT) RETURNS DOUBLE",
            "state_words = 2"
        ),
        [
            "void f_init(uint64_t *states, uint32_t groups)",
            "void f_update(const int16_t *x, const uint32_t *group, uint32_t rows, uint64_t \
             *states, uint32_t groups)",
            "void f_merge(uint64_t *states, const uint64_t *others, uint32_t groups)",
            "void f_finish(const uint64_t *states, uint32_t groups, double *result, uint64_t \
             *result_valid)",
        ]
    );
    assert_eq!(
        declarations(
            "table",
            "(low TEXT CONSTANT) RETURNS TABLE (day DATE, n BIGINT)",
            ""
        ),
        [
            "void f(const uint8_t *pages, uint32_t page_count, const uint8_t *low, uint32_t \
             low_length, int32_t *day, int64_t *n, uint32_t capacity, uint32_t *rows)"
        ]
    );
}

#[test]
fn arguments_may_be_listed_instead() {
    let text = "[kernel]\nname = 'f'\nkind = 'scalar'\nversion = '0.1.0'\n\
                [[argument]]\nname = 'x'\ntype = 'u32'\nuse = 'in'\n\
                [[argument]]\nname = 'n'\ntype = 'f64'\nuse = 'scalar'\n";
    let manifest = Manifest::parse(text).unwrap();
    assert_eq!(
        manifest.functions()[0].to_string(),
        "void f(const uint32_t *x, double n)"
    );
    // What states such an aggregate has is its own matter.
    let aggregate = text.replace("'scalar'\nversion", "'aggregate'\nversion");
    assert_eq!(Manifest::parse(&aggregate).unwrap().state_words, 0);
    let with_states = aggregate.replace("version", "state_words = 2\nversion");
    Manifest::parse(&with_states).unwrap_err();
}

const STREAM: &str = r#"
[stream]
top = "band_stream"
control = "ap_ctrl_chain"
[[stream.argument]]
name = "prices"
type = "f64"
use = "stream"
direction = "in"
bits = 512
depth = 128
[[stream.argument]]
name = "table"
type = "u8"
use = "in"
bits = 512
outstanding = 16
bundle = "wide"
[[stream.argument]]
name = "lengths"
type = "u32"
use = "in"
bits = 32
outstanding = 1
bundle = "narrow"
[[stream.argument]]
name = "count"
type = "u32"
use = "scalar"
"#;

#[test]
fn a_streaming_form_has_ports_of_stated_widths() {
    let text = format!("{PRICE_BAND}{STREAM}");
    let stream = Manifest::parse(&text).unwrap().stream.unwrap();
    assert_eq!(
        stream.to_string(),
        "void band_stream(flashmesh::axis &prices, flashmesh::wide_port table, const uint32_t \
         *lengths, uint32_t count)"
    );
    assert!(stream.is_chained);
    for (old, new, reason) in [
        ("top = \"band_stream\"", "", "stream.top is missing"),
        ("ap_ctrl_chain", "ap_ctrl_none", "ap_ctrl_chain or"),
        ("direction = \"in\"", "", "needs a direction"),
        (
            "bits = 512\ndepth",
            "bits = 256\ndepth",
            "stream.argument.bits is 256",
        ),
        ("depth = 128", "", "needs depth = 128"),
        ("bits = 32", "bits = 64", "needs bits = 32"),
        ("bundle = \"narrow\"", "bundle = \"wide\"", "several widths"),
        ("bundle = \"narrow\"", "", "needs a bundle"),
        ("outstanding = 1\n", "", "needs outstanding"),
        (
            "name = \"lengths\"",
            "name = \"table\"",
            "are named 'table'",
        ),
        (
            "use = \"stream\"\ndirection = \"in\"\nbits = 512\ndepth = 128",
            "use = \"scalar\"",
            "no argument",
        ),
        ("use = \"scalar\"", "use = \"scalar\"\nbits = 32", "no key"),
        (
            "use = \"scalar\"",
            "use = \"inout\"",
            "write scalar, in, out or stream",
        ),
    ] {
        let changed = text.replacen(old, new, 1);
        assert_ne!(changed, text, "{old}");
        let error = Manifest::parse(&changed).unwrap_err().to_string();
        assert!(error.contains(reason), "{new}: {error}");
    }
    // What the host calls takes arrays.
    let listed = "[kernel]\nname = 'f'\nkind = 'scalar'\nversion = '0.1.0'\n\
                  [[argument]]\nname = 'x'\ntype = 'u32'\nuse = 'stream'\n";
    let error = Manifest::parse(listed).unwrap_err().to_string();
    assert!(error.contains("[[stream.argument]]"), "{error}");
}

/// The kernels of our own have the streaming forms that their manifests say.
#[test]
fn our_own_streaming_forms_parse() {
    for (text, declaration) in [
        (
            include_str!("../../../../fpga/hls/morris_pratt/kernel.toml"),
            "void morris_pratt_stream(flashmesh::axis &texts, uint32_t count, \
             flashmesh::wide_port pattern, uint32_t pattern_length, flashmesh::axis &results)",
        ),
        (
            include_str!("../../../../fpga/hls/fgrep8/kernel.toml"),
            "void fgrep8_stream(flashmesh::axis &texts, uint32_t count, flashmesh::wide_port \
             patterns, const uint32_t *lengths, flashmesh::axis &results)",
        ),
    ] {
        let stream = Manifest::parse(text).unwrap().stream.unwrap();
        assert_eq!(stream.to_string(), declaration);
    }
    for text in [
        include_str!("../../../../fpga/hls/hamming_nearest/kernel.toml"),
        include_str!("../../../../fpga/hls/page_decode/kernel.toml"),
        include_str!("../../../../fpga/hls/partial_aggregate/kernel.toml"),
        include_str!("../../../../fpga/hls/predicate_filter/kernel.toml"),
        include_str!("../../../../fpga/hls/read_modify_write/kernel.toml"),
        include_str!("../../../../fpga/hls/text_decode/kernel.toml"),
    ] {
        let manifest = Manifest::parse(text).unwrap();
        let stream = manifest.stream.unwrap().to_string();
        assert!(
            stream.contains(&format!(" {}_stream(", manifest.name)),
            "{stream}"
        );
    }
}

#[test]
fn what_is_wrong_is_named_with_the_way_out() {
    let long_name = format!("name = '{}'", "a".repeat(64));
    for (old, new, reason) in [
        ("name = \"price_band\"", "", "kernel.name is missing"),
        (
            "name = \"price_band\"",
            "name = 7",
            "kernel.name is integer",
        ),
        ("name = \"price_band\"", "name = 'A'", "a lower-case letter"),
        (
            "name = \"price_band\"",
            "name = 'a\\nb'",
            "a lower-case letter",
        ),
        ("name = \"price_band\"", &long_name, "63 at most"),
        ("\"filter\"", "'filters'", "kernel.kind is \"filters\""),
        ("\"1.0.0\"", "'1.0'", "three numbers"),
        ("\"1.0.0\"", "'1.0.-1'", "three numbers"),
        ("TRUE where", "TRUE\\nwhere", "kernel.description has to be"),
        (
            "RETURNS BOOLEAN",
            "RETURNS DOUBLE",
            "has to end with RETURNS",
        ),
        ("low DOUBLE", "price DOUBLE", "two parameters named"),
        ("low DOUBLE", "rows DOUBLE", "two arguments 'rows'"),
        ("low DOUBLE", "low FLOAT[]", "length of 'low' open"),
        (
            "[\"kernel.cpp\"]",
            "['../kernel.cpp']",
            "kernel.sources has",
        ),
        ("[\"kernel.cpp\"]", "['/kernel.cpp']", "kernel.sources has"),
        ("[\"kernel.cpp\"]", "[1]", "a list of 64 texts"),
        ("sources", "tops = 1\nsources", "kernel.tops is no key"),
        ("sources", "state_words = 1\nsources", "for aggregates only"),
        ("[kernel]", "x = 1\n[kernel]", "x is no key"),
        (
            "[kernel]",
            "[limits]\nrows_per_call = 65\n[kernel]",
            "of 64",
        ),
        (
            "[kernel]",
            "[limits]\nrows_per_call = -1\n[kernel]",
            "is -1",
        ),
        (
            "[kernel]",
            "[limits]\nmemory_bytes = 1\n[kernel]",
            "65536 to",
        ),
        (
            "[kernel]",
            "[calls]\nkernels = ['price_band']\n[kernel]",
            "itself",
        ),
        (
            "[kernel]",
            "[fpga.banks]\nx = 'DDR[0]'\n[kernel]",
            "no array",
        ),
        (
            "[kernel]",
            "[fpga.banks]\nprice = 'DDR'\n[kernel]",
            "\"DDR[0]\"",
        ),
        (
            "[kernel]",
            "[intent]\nbytes_per_cycle = -1\n[kernel]",
            "above 0",
        ),
        ("[kernel]", "[kernel", "line 2"),
    ] {
        let text = PRICE_BAND.replacen(old, new, 1);
        assert_ne!(text, PRICE_BAND);
        let error = Manifest::parse(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{new}: {error}");
        assert!(error.starts_with("kernel.toml: "), "{error}");
    }
}
