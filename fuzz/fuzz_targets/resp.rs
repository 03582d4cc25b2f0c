//! Checks that the parser of RESP, the Redis protocol, finds the same commands no matter how the input is split.

#![no_main]

use libfuzzer_sys::fuzz_target;
use resp::Parser;

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/serve/resp.rs"]
mod resp;

/// Returns the commands of an input that arrives in pieces of these sizes, and the error that ends it, if any.
fn commands(input: &[u8], mut piece: impl FnMut() -> usize) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let (mut commands, mut parser, mut begin, mut there) = (Vec::new(), Parser::default(), 0, 0);
    loop {
        let command = &input[begin..there];
        match parser.parse(command, true) {
            Err(error) => return (commands, Some(error.to_string())),
            Ok(Some(taken)) => {
                assert!((1..=command.len()).contains(&taken), "the size of a command is outside its input");
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
    assert_eq!(whole, pieces, "the commands depend on how the input is split");
});
