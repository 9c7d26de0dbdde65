//! The chats: how long they are, and what is said.
//!
//! The shape is that of the load KubeAI measured its prefix hashing with (ShareGPT threads, each
//! turn sent when the last one is answered): 7.4 turns a chat on average, 40 output tokens a turn,
//! every turn with the whole history. ShareGPT's texts are not here; their place is taken by
//! random words with lengths as people write them: a first message that often brings a text along
//! (200 to 1,800 tokens), follow-ups of a few sentences (20 to 300 tokens), and a system prompt
//! of 250 tokens that all chats share.
//!
//! Between an answer and the next turn a chat is silent for up to four seconds, as when an agent runs
//! a tool (people take longer). Without that pause the endpoint that has just answered is always
//! the least loaded one when the next turn comes, and a policy that knows nothing of prefixes
//! seems to: `least_request` then finds 70 % of its tokens cached, by this accident alone.

use fastrand::Rng;
use std::time::Duration;

/// Turns of a chat, on average.
pub const MEAN_TURNS: f64 = 7.4;
/// Output tokens of a turn.
pub const OUTPUT_TOKENS: u32 = 40;
/// Rough size of a token in English text.
const BYTES_PER_TOKEN: usize = 4;
const SYSTEM_TOKENS: usize = 250;
const FIRST_MESSAGE_TOKENS: std::ops::Range<usize> = 200..1_800;
const FOLLOW_UP_TOKENS: std::ops::Range<usize> = 20..300;
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// One chat, as its user plays it.
#[derive(Clone, Debug)]
pub struct Chat {
    /// Names the chat, as an application's session id would.
    pub session: String,
    /// The prompt that all chats share.
    pub system: String,
    /// What the user says, turn by turn; at least one turn.
    pub turns: Vec<Turn>,
}

/// One turn of a chat.
#[derive(Clone, Debug)]
pub struct Turn {
    /// How long the user takes, on the modelled hardware; nothing before the first turn.
    pub pause: Duration,
    /// What the user says.
    pub says: String,
}

/// `count` chats; the same for the same arguments.
pub fn chats(seed: u64, count: u32, mean_turns: f64) -> Vec<Chat> {
    let mut rng = Rng::with_seed(seed);
    let system = text(&mut rng, SYSTEM_TOKENS);
    (0..count)
        .map(|number| {
            // Uniform around the mean, from a single turn on.
            let spread = (mean_turns - 1.0).max(0.0);
            let turns = (1.0 + 2.0 * spread * rng.f64()).round().max(1.0) as usize;
            let turns = (0..turns).map(|turn| self::turn(&mut rng, turn)).collect();
            Chat {
                session: format!("chat-{seed}-{number}"),
                system: system.clone(),
                turns,
            }
        })
        .collect()
}

fn turn(rng: &mut Rng, turn: usize) -> Turn {
    let (pause, lengths) = match turn {
        0 => (Duration::ZERO, FIRST_MESSAGE_TOKENS),
        _ => (LONGEST_PAUSE.mul_f64(rng.f64()), FOLLOW_UP_TOKENS),
    };
    let tokens = rng.usize(lengths);
    Turn {
        pause,
        says: text(rng, tokens),
    }
}

/// Words of random letters, about `tokens` long.
fn text(rng: &mut Rng, tokens: usize) -> String {
    let mut text = String::with_capacity(tokens * BYTES_PER_TOKEN);
    while text.len() < tokens * BYTES_PER_TOKEN {
        for _ in 0..rng.usize(2..9) {
            text.push(rng.lowercase());
        }
        text.push(' ');
    }
    text
}
