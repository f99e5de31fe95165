use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::kernel::interface::{ArgumentInterface, ArgumentUse, ElementType};

fn argument(name: &str, usage: ArgumentUse, element: ElementType, bank: &str) -> ArgumentInterface {
    ArgumentInterface {
        name: name.into(),
        usage,
        element,
        bank: bank.into(),
    }
}

fn price_band() -> ContainerKernel {
    ContainerKernel {
        manifest: "[kernel]\nname = \"price_band\"\n".into(),
        source: "ab".repeat(32),
        interface: KernelInterface {
            name: "price_band".into(),
            compute_units: 2,
            functions: vec![FunctionInterface {
                name: "price_band".into(),
                arguments: vec![
                    argument("price", ArgumentUse::In, ElementType::F64, "HBM[3]"),
                    argument("low", ArgumentUse::Scalar, ElementType::F64, "DDR[0]"),
                    argument("flags", ArgumentUse::Scalar, ElementType::U8, "DDR[0]"),
                    argument("selection", ArgumentUse::Out, ElementType::U64, "DDR[1]"),
                ],
            }],
        },
    }
}

fn container() -> Container {
    Container::for_emulation(vec![price_band()], b"a library").unwrap()
}

#[test]
fn a_container_says_what_it_holds() {
    let container = container();
    assert!(container.is_emulation());
    assert_eq!(container.kernels(), [price_band()]);
    let instances: Vec<_> = container.compute_units().iter().collect();
    assert_eq!(instances[1].instance, "price_band_2");
    assert_eq!(instances[1].base_address, 0x181_0000);
    let banks: Vec<_> = container
        .memory_banks()
        .iter()
        .map(|b| b.name.as_str())
        .collect();
    assert_eq!(banks, ["DDR[0]", "DDR[1]", "HBM[3]"]);
    let again = Container::from_bytes(container.bytes().to_vec()).unwrap();
    assert_eq!(again.bytes(), super::tests::container().bytes());
}

#[test]
fn registers_are_where_vitis_puts_them() {
    let kernel = price_band();
    let function = &kernel.interface.functions[0];
    assert_eq!(layout::register_offsets(function), [0x10, 0x1c, 0x28, 0x30]);
    let units = layout::compute_units(std::slice::from_ref(&kernel.interface)).unwrap();
    let entry = generate::model_entry(std::slice::from_ref(&kernel.interface), &units);
    assert!(entry.contains(
        "extern \"C\" void price_band(const double *price, double low, uint8_t flags, uint64_t *selection);"
    ));
    assert!(entry.contains(
        "price_band(a0, scalar<double>(registers, 0x1c), scalar<uint8_t>(registers, 0x28), a3);"
    ));
}

#[test]
fn vitis_files_name_copies_and_banks() {
    let files = vitis_files(&[price_band()], &["price_band/kernel.cpp"], 300).unwrap();
    for line in [
        "nk=price_band:2:price_band_1.price_band_2",
        "sp=price_band_2.price:HBM[3]",
        "sp=price_band_1.selection:DDR[1]",
    ] {
        assert!(files.config.lines().any(|l| l == line), "{line}");
    }
    assert!(files.makefile.contains("not run without Vitis"));
    assert!(vitis_files(&[price_band()], &["$(shell x)"], 300).is_err());
}

#[test]
fn every_truncation_is_refused() {
    let bytes = container().bytes().to_vec();
    for length in 0..bytes.len() {
        let error = Container::from_bytes(bytes[..length].to_vec()).unwrap_err();
        assert!(
            error.to_string().starts_with("xclbin container: "),
            "{error}"
        );
    }
}

#[test]
fn lying_offsets_and_counts_are_refused() {
    let good = container().bytes().to_vec();
    let lie = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        Container::from_bytes(bytes).unwrap_err().to_string()
    };
    let section = |index: usize| 456 + 40 * index;
    assert!(lie(0, b"xclbin0\0").contains("'xclbin2'"));
    assert!(lie(304, &u64::MAX.to_le_bytes()).contains("its header says"));
    assert!(lie(304 + 144, &u32::MAX.to_le_bytes()).contains("sections do not fit"));
    assert!(lie(section(0) + 24, &u64::MAX.to_le_bytes()).contains("outside of it"));
    assert!(lie(section(0) + 24, &0u64.to_le_bytes()).contains("outside of it"));
    assert!(lie(section(0) + 32, &u64::MAX.to_le_bytes()).contains("outside of it"));
    let second: [u8; 8] = good[section(1) + 24..][..8].try_into().unwrap();
    assert!(lie(section(2) + 24, &second).contains("overlap"));
    assert!(lie(section(7), &99u32.to_le_bytes()).contains("USER_METADATA"));
    // The count of compute units.
    let layout_at = u64::from_le_bytes(good[section(4) + 24..][..8].try_into().unwrap());
    assert!(lie(layout_at as usize, &u32::MAX.to_le_bytes()).contains("IP_LAYOUT"));
    assert!(lie(layout_at as usize, &0u32.to_le_bytes()).contains("no compute unit"));
}

#[test]
fn flipped_bytes_never_panic() {
    let good = container().bytes().to_vec();
    let mut random = StdRng::seed_from_u64(11);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
        let _ = Container::from_bytes(bytes);
    }
}
