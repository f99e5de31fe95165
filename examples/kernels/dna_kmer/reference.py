"""What dna_kmer must answer: windows that match a k-mer but for some mismatches."""

from vectorfile import Vectors, text_column


def count(sequence, kmer, mismatches):
    windows = [sequence[at : at + len(kmer)] for at in range(len(sequence) - len(kmer) + 1)]
    return sum(sum(a != b for a, b in zip(window, kmer)) <= mismatches for window in windows)


def vectors(rng):
    out = Vectors()

    def case(title, sequences, kmer, mismatches):
        offsets, data = text_column(sequences)
        out.case(title).call("dna_kmer")
        out.array("sequence_offsets", "u32", offsets).array("sequence_bytes", "u8", data)
        out.array("kmer", "u8", kmer).scalar("kmer_length", "u32", len(kmer))
        out.scalar("mismatches", "i32", mismatches).scalar("rows", "u32", len(sequences))
        out.out("result", "i32", [count(s, kmer, mismatches) for s in sequences])

    case("no rows", [], b"ACGT", 0)
    case("exact", [b"ACGTACGT", b"ACG", b"", b"TACGTA", b"AAAA"], b"ACGT", 0)
    case("one mismatch", [b"ACGTACCT", b"ACG", b"ACGA", b"TTTT"], b"ACGT", 1)
    case("as many as it has bytes", [b"TTTTT", b"TTT"], b"ACGT", 4)
    case("negative", [b"ACGT", b""], b"ACGT", -1)
    case("most and least mismatches", [b"ACGT"], b"ACGT", 2**31 - 1)
    case("least", [b"ACGT"], b"ACGT", -(2**31))
    case("no bytes", [b"ACGT", b""], b"", 0)
    case("windows overlap", [b"AAAAAA"], b"AAA", 0)
    for rows in (1, 63, 64, 65):
        sequences = [bytes(rng.choice(b"ACGT") for _ in range(rng.randrange(40)))
                     for _ in range(rows)]
        case(f"{rows} rows", sequences, b"GATTA", rng.randrange(3))
    return out
