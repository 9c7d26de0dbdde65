//! Hashes and the places on the ring.

use warmroute::endpoint::{Endpoint, Pool};
use warmroute::policy::{Ring, point};
use wasm_bindgen_test::wasm_bindgen_test;
use xxhash_rust::xxh64::xxh64;

#[wasm_bindgen_test(unsupported = test)]
fn xxh64_is_that_of_its_specification() {
    assert_eq!(xxh64(b"", 0), 0xef46_db37_51d8_e999);
    assert_eq!(xxh64(b"a", 0), 0xd24e_c4f1_a98c_6e5b);
    assert_eq!(xxh64(b"abc", 0), 0x44bc_2cf5_ad77_0999);
    assert_eq!(
        xxh64(b"The quick brown fox jumps over the lazy dog", 0),
        0x0b24_2d36_1fda_71bc
    );
}

#[wasm_bindgen_test(unsupported = test)]
fn h3_points_of_similar_names_differ() {
    assert_ne!(point("pod1", 11), point("pod11", 1));
}

/// Twenty keys over five endpoints; computed by another implementation from the description alone.
#[wasm_bindgen_test(unsupported = test)]
fn keys_keep_their_places() {
    let addresses = [
        "10.0.0.1:8000",
        "10.0.0.2:8000",
        "10.0.0.10:8000",
        "[2001:db8::1]:8000",
        "192.168.1.5:9101",
    ];
    let endpoints = addresses
        .iter()
        .map(|address| Endpoint::new(address.parse().unwrap()));
    let ring = Ring::new(&Pool::new(endpoints.collect()), 128);
    let lines: Vec<&str> = include_str!("../golden/ring.txt").lines().collect();
    assert_eq!(lines.len(), 20);
    for line in lines {
        let (key, places) = line.split_once(' ').unwrap();
        let walked: Vec<String> = ring
            .walk(u64::from_str_radix(key, 16).unwrap())
            .map(|index| index.to_string())
            .collect();
        assert_eq!(walked.join(" "), places, "{key}");
    }
}
