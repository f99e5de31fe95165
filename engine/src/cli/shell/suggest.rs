//! "Did you mean …": the known name that is nearest to one that is not.

/// The candidate with the fewest edits from `name` (Damerau and Levenshtein's, without regard to
/// case), if they are few enough for a slip: one in three characters, one at least.
pub(in crate::cli) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let name = name.to_lowercase();
    let allowed = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| {
            let edits = strsim::damerau_levenshtein(&name, &candidate.to_lowercase());
            (edits, candidate)
        })
        .filter(|(edits, candidate)| *edits <= allowed && *edits < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let names = ["lineitem", "orders", "part", "partsupp", "id"];
        for (typed, meant) in [
            ("linetiem", Some("lineitem")),
            ("LINEITEMS", Some("lineitem")),
            ("order", Some("orders")),
            ("part", Some("part")),
            ("prat", Some("part")),
            ("customer", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names), meant, "{typed}");
        }
    }
}
