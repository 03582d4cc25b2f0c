//! The parser finds the same commands in any input of clients, however it is split, and within its limits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use resp::Parser;

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/serve/resp.rs"]
mod resp;

/// The commands of an input that comes in pieces of these sizes, in turns, and how it ends.
fn commands(input: &[u8], mut piece: impl FnMut() -> usize) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let (mut commands, mut parser, mut begin, mut there) = (Vec::new(), Parser::default(), 0, 0);
    loop {
        let command = &input[begin..there];
        match parser.parse(command, true) {
            Err(error) => return (commands, Some(error.to_string())),
            Ok(Some(taken)) => {
                assert!((1..=command.len()).contains(&taken), "it takes what is there");
                commands.push(parser.parts().iter().map(|part| command[part.clone()].to_vec()).collect());
                begin += taken;
                parser.reset();
            }
            Ok(None) if there == input.len() => return (commands, None),
            Ok(None) => there = (there + piece()).min(input.len()),
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let (sizes, input) = input.split_at(input.len().min(4));
    let whole = commands(input, || input.len());
    let mut sizes = sizes.iter().cycle();
    let pieces = commands(input, move || usize::from(*sizes.next().unwrap_or(&1)).max(1));
    assert_eq!(whole, pieces, "in pieces as in one");
});
