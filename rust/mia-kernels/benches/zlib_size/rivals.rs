//! The prototype, compiled as a program of its own with its own flags.

use std::hint::black_box;
use std::io::{BufRead, stdin};

use k::data_parallel_avx512::V8;
use k::data_parallel_sse2::V9;
use k::ffi::cpu_ns;
use k::simple::Vh;

type Size = Box<dyn FnMut(&[u8]) -> usize>;

/// Arguments: a file of texts, and how many bytes each has. Every line read is a round, and is
/// answered by the nanoseconds that each path took the second time, with its name.
fn main() {
    let mut arguments = std::env::args().skip(1);
    let texts = std::fs::read(arguments.next().unwrap()).unwrap();
    let length = arguments.next().unwrap().parse().unwrap();
    let (mut simple, mut sse2) = (Vh::new(), V9::new());
    let mut paths: Vec<(&str, Size)> = vec![
        ("simple", Box::new(move |text| simple.size(text))),
        ("sse2", Box::new(move |text| sse2.size(text))),
    ];
    if cfg!(target_feature = "avx512vbmi2") {
        let mut avx512 = V8::new();
        paths.push(("avx512", Box::new(move |text| avx512.size(text))));
    }
    for _ in stdin().lock().lines() {
        for (name, size) in &mut paths {
            let mut time_all = || {
                let start = cpu_ns();
                for text in texts.chunks(length) {
                    black_box(size(black_box(text)));
                }
                cpu_ns() - start
            };
            time_all();
            print!("{name} {} ", time_all());
        }
        println!();
    }
}
