//! The wire format: what is written is read, and hostile bytes do no harm.

use flashmesh_pushdown::testing::{Generator, for_each_case};
use flashmesh_pushdown::{
    Expr, Limits, Output, Program, ProgramError, RuntimeFilter, RuntimePredicate, Scalar, verify,
    verify_runtime_filter,
};
use rand::RngExt;
use rand::seq::IndexedRandom;

fn random_program(generator: &mut Generator) -> (Program, arrow::array::RecordBatch) {
    let columns = generator.rng().random_range(0..8);
    let schema = generator.schema(columns);
    let batch = generator.batch(&schema, 20);
    (generator.program(&schema, &batch), batch)
}

#[test]
fn programs_come_back_as_they_were() {
    for_each_case("programs round trip", 2_000, |generator| {
        let (program, batch) = random_program(generator);
        let bytes = program.encode();
        let decoded = Program::decode(&bytes).unwrap();
        // Debug, because a NaN doesn't equal itself; the bytes, because Debug hides NaN's bits.
        assert_eq!(format!("{decoded:?}"), format!("{program:?}"));
        assert_eq!(decoded.encode(), bytes);
        verify(decoded, &batch.schema(), &Limits::default()).unwrap();
    });
}

#[test]
fn runtime_filters_come_back_as_they_were() {
    for_each_case("runtime filters round trip", 2_000, |generator| {
        let (program, batch) = random_program(generator);
        let input = batch
            .project(&flashmesh_pushdown::testing::ordinals(&program))
            .unwrap();
        if let Some(filter) = generator.runtime_filter(&program, &input) {
            verify_runtime_filter(&filter, &program.columns, &Limits::default()).unwrap();
            let bytes = filter.encode();
            let decoded = RuntimeFilter::decode(&bytes).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{filter:?}"));
            assert_eq!(decoded.encode(), bytes);
        }
    });
}

/// A Program states the lowest version that knows all of it, so that an older reader takes
/// whatever it can run.
#[test]
fn the_version_is_the_lowest() {
    let program = |expr: Expr| Program {
        columns: Vec::new(),
        filter: vec![Expr::Not(Box::new(expr))],
        output: Output::Rows {
            exprs: Vec::new(),
            order: Vec::new(),
            limit: None,
        },
    };
    let text = || Box::new(Expr::Column(0));
    // Field 1, a varint.
    let version = |expr| program(expr).encode()[..2].to_vec();
    assert_eq!(version(Expr::IsNull(text())), [0x08, 1]);
    for newer in [
        Expr::Position {
            expr: text(),
            needle: "n".into(),
        },
        Expr::Regex {
            expr: text(),
            pattern: "p".into(),
            negated: false,
            case_insensitive: true,
        },
        Expr::ContainsAny {
            expr: text(),
            needles: vec!["n".into()],
        },
    ] {
        assert_eq!(version(newer), [0x08, 2]);
    }
}

/// Damaged bytes either are refused or are another Program, which the verifier then judges;
/// nothing panics.
#[test]
fn damaged_bytes_never_panic() {
    let mut refused = 0;
    let mut accepted = 0;
    for_each_case("damaged programs", 5_000, |generator| {
        let (program, batch) = random_program(generator);
        let mut bytes = program.encode();
        let rng = generator.rng();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..=bytes.len());
            match rng.random_range(0..4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, rng.random()),
                2 if at < bytes.len() => {
                    bytes.remove(at);
                }
                _ if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
                _ => {}
            }
        }
        match Program::decode(&bytes) {
            Ok(program) => {
                accepted += 1;
                let _ = program.to_string();
                let _ = verify(program, &batch.schema(), &Limits::default());
            }
            Err(_) => refused += 1,
        }
        let _ = RuntimeFilter::decode(&bytes);
    });
    println!("{refused} refused, {accepted} read as another program");
}

/// Bytes that are protobuf, but of no sense: lengths and tags in random order.
#[test]
fn random_bytes_never_panic() {
    for_each_case("random bytes", 20_000, |generator| {
        let rng = generator.rng();
        let tags = [
            0x08, 0x12, 0x1a, 0x22, 0x2a, 0x0a, 0x10, 0x18, 0x42, 0x4a, 0x52, 0x5a, 0x62,
        ];
        let length = rng.random_range(0..200);
        let bytes: Vec<u8> = (0..length)
            .map(|_| match rng.random_range(0..3) {
                0 => *tags.choose(rng).unwrap(),
                1 => rng.random_range(0..12),
                _ => rng.random(),
            })
            .collect();
        let _ = Program::decode(&bytes);
        let _ = RuntimeFilter::decode(&bytes);
    });
}

/// A type nested in itself, as deep as protobuf allows and deeper.
#[test]
fn nested_types_are_bounded() {
    // DataType { kind: LIST, children: [Field { data_type: … }] }
    fn list_of(inner: Vec<u8>) -> Vec<u8> {
        let field = delimited(0x12, inner);
        [vec![0x08, 26], delimited(0x3a, field)].concat()
    }
    fn delimited(tag: u8, bytes: Vec<u8>) -> Vec<u8> {
        let mut out = vec![tag];
        let mut length = bytes.len();
        while length >= 128 {
            out.push(length as u8 | 128);
            length >>= 7;
        }
        out.push(length as u8);
        [out, bytes].concat()
    }
    for (depth, fits) in [
        (1, true),
        (32, true),
        (33, false),
        (60, false),
        (5_000, false),
    ] {
        let mut data_type = vec![0x08, 4]; // Int32
        for _ in 0..depth {
            data_type = list_of(data_type);
        }
        let column = delimited(0x12, delimited(0x1a, data_type));
        let rows = delimited(0x22, vec![]);
        let bytes = [vec![0x08, 1], column, rows].concat();
        match Program::decode(&bytes) {
            Ok(_) => assert!(fits, "{depth}"),
            Err(error) => {
                assert!(!fits, "{depth}: {error}");
                assert!(matches!(error, ProgramError::Malformed(_)), "{error}");
            }
        }
    }
}

#[test]
fn too_many_bytes_are_refused_unread() {
    let error = Program::decode(&vec![0xff; 64 << 20]).unwrap_err();
    assert!(
        matches!(error, ProgramError::OverLimit { limit: "bytes", .. }),
        "{error}"
    );
}

#[test]
fn a_bitmap_of_broken_words_is_refused() {
    let filter = RuntimeFilter {
        column: 0,
        predicate: RuntimePredicate::Bitmap {
            base: -3,
            bits: [0b101].into(),
        },
        keep_nulls: false,
    };
    let passing: Vec<i128> = (-10..10)
        .filter(|v| filter.passes(&Scalar::Int(*v)))
        .collect();
    assert_eq!(passing, [-3, -1]);
    let mut bytes = filter.encode();
    let length_of_bits = bytes.len() - 9;
    assert_eq!(bytes[length_of_bits], 8);
    let length_of_bitmap = bytes.iter().position(|b| *b == 0x32).unwrap() + 1;
    bytes[length_of_bits] -= 1;
    bytes[length_of_bitmap] -= 1;
    bytes.pop();
    let error = RuntimeFilter::decode(&bytes).unwrap_err();
    assert!(error.to_string().contains("whole words"), "{error}");
}
