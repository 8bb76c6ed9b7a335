//! The cost of one short message in instructions: two endpoints of one thread, so that nothing but
//! the code counts. docs/performance.md says how to run it under callgrind, and the results.
//!
//! ```text
//! cargo build --release -p fabric --example short
//! valgrind --tool=callgrind --toggle-collect='short::exchange*' target/release/examples/short
//! ```

use std::hint::black_box;
use std::sync::Arc;

use fabric::{
    Class, Completion, Endpoint, EndpointOptions, MemoryPiece, Message, Receive, RegionOptions,
    RequestContext,
};
use fabric_node::SlotTable;

const MESSAGES: u64 = 10_000;
const BYTES: usize = 8;

/// Each message is asked for, sent, received, and told to both.
#[inline(never)]
fn exchange(sender: &mut Endpoint, receiver: &mut Endpoint, memory: &mut [[u8; BYTES]; 2]) {
    let [from, into] =
        memory.each_mut().map(|bytes| [MemoryPiece { start: bytes.as_mut_ptr(), bytes: BYTES }]);
    let (to, source, class) = (receiver.address(), Some(sender.address()), Class::Tagged);
    let context = RequestContext(1);
    for tag in 0..MESSAGES {
        let receive = Receive { class, source, tag, ignore: 0, context, multi_min_bytes: None };
        let message = Message { to, class, tag, data: None, context: Some(context), inject: false };
        // SAFETY: the memory outlives all that is asked for here, which ends below.
        unsafe {
            receiver.receive(&receive, &into).expect("a sound receive");
            sender.send(&message, &from).expect("room");
        }
        for endpoint in [&mut *receiver, &mut *sender] {
            let Completion { context, done, bytes, failure, .. } =
                endpoint.completion().expect("it has ended");
            black_box((context, done, bytes));
            assert_eq!(failure, None);
        }
    }
}

fn main() {
    let (table, _fd) = SlotTable::create(&RegionOptions::default()).expect("memory");
    let [mut sender, mut receiver] = [(); 2].map(|()| {
        let (slot, incarnation) = table.take_slot(std::process::id()).expect("a slot");
        let region = Arc::clone(table.region());
        Endpoint::new(region, slot, incarnation, 1, &EndpointOptions::default()).expect("a slot")
    });
    exchange(&mut sender, &mut receiver, &mut [[1; BYTES], [0; BYTES]]);
    println!("{MESSAGES} messages of {BYTES} bytes");
}
