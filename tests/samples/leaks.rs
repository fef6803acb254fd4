//! Leaks in Rust, in functions called `leaky`; all other memory is freed. Run on neap by LD_PRELOAD.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{LazyLock, Mutex};

static VECTOR: Mutex<Vec<String>> = Mutex::new(Vec::new());
static MAP: LazyLock<Mutex<HashMap<usize, Box<[u8; 100]>>>> = LazyLock::new(Mutex::default);

struct Node {
    other: RefCell<Option<Rc<Node>>>,
    _data: [u8; 200],
}

#[inline(never)]
fn leaky_vector(i: usize) {
    VECTOR.lock().expect("no panic").push(format!("{i:0100}"));
}

#[inline(never)]
fn leaky_map(i: usize) {
    MAP.lock().expect("no panic").insert(i, Box::new([1; 100]));
}

#[inline(never)]
fn leaky_circle(_: usize) {
    let node = || Rc::new(Node { other: RefCell::new(None), _data: [1; 200] });
    let (a, b) = (node(), node());
    *a.other.borrow_mut() = Some(b.clone());
    *b.other.borrow_mut() = Some(a);
}

#[inline(never)]
fn churn(i: usize) -> usize {
    (0..20).map(|k| "y".repeat(40 + (i + k) % 300)).map(|text| text.len()).sum()
}

fn main() {
    let case = std::env::args().nth(1).unwrap_or_default();
    let leak: fn(usize) = match case.as_str() {
        "vector" => leaky_vector,
        "map" => leaky_map,
        "circle" => leaky_circle,
        other => panic!("no case {other}"),
    };
    let mut sum = 0;
    for i in 0..60_000 {
        sum += churn(i);
        leak(i);
    }
    println!("{sum}");
}
