//! The canonical prompt, hashed as it comes.
//!
//! Canonical stream of a chat: for each message its text parts one after the other, for each part
//! with an image or other structure `0xFE` and the 8-byte sum of their digests, then `0xFF` and 8
//! bytes for the role and the message's other members. UTF-8 text contains neither mark.
//! Canonical stream of one raw prompt: its text, or its token ids as 4-byte little-endian words.

use xxhash_rust::xxh64::{Xxh64, xxh64};

use super::PromptDigest;

/// How much of a prompt is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) prefix_bytes: u32,
    pub(crate) block_bytes: u32,
    pub(crate) max_blocks: u32,
}

/// What precedes the messages in the prompt wherever it stands in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preamble {
    Tools,
    System,
    Salt,
    Documents,
    Template,
}

const PREAMBLES: usize = 5;
const PART_MARK: u8 = 0xFE;
const MESSAGE_MARK: u8 = 0xFF;
const TOKEN_BYTES: usize = 4;
/// Token ids that are hashed together.
const GROUP: usize = 64;
/// Seed of a stream of token ids, so that no text equals it.
const IDS_SEED: u64 = 1;

/// Role of a message, as far as the routing key needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    User,
    Other,
}

/// The hash at one position of the text, taken when the text gets there.
#[derive(Clone, Copy, Debug)]
struct Cut {
    left: u64,
    at: Option<u64>,
}

impl Cut {
    fn new(bytes: u32, hash: &Xxh64) -> Self {
        let at = (bytes == 0).then(|| hash.digest());
        let left = u64::from(bytes);
        Self { left, at }
    }

    fn room(&self) -> u64 {
        if self.at.is_some() {
            u64::MAX
        } else {
            self.left
        }
    }

    fn advance(&mut self, bytes: u64, hash: &Xxh64) {
        if self.at.is_none() {
            self.left = self.left.saturating_sub(bytes);
            if self.left == 0 {
                self.at = Some(hash.digest());
            }
        }
    }
}

/// Everything that grows with the stream, so that it can be wound back when a key repeats.
#[derive(Clone)]
struct Run {
    hash: Xxh64,
    until_block: u64,
    blocks: usize,
    content_bytes: u64,
    extra_bytes: u64,
    token_ids: u64,
    images: u32,
    /// In the message or item under way.
    message: Cut,
    /// In all messages together.
    whole: Cut,
}

/// Builds a [`PromptDigest`] from the pieces of a prompt, in the order they come.
pub(crate) struct PromptHasher {
    limits: Limits,
    run: Run,
    items: u32,
    blocks: Vec<u64>,
    routing: Option<u64>,
    message_start: Run,
    part_start: Run,
    aside: Xxh64,
    aside_bytes: u64,
    preambles: [Option<(u64, u64)>; PREAMBLES],
}

impl PromptHasher {
    pub(crate) fn new(limits: Limits) -> Self {
        let cut = Cut::new(limits.prefix_bytes, &Xxh64::new(0));
        let run = Run {
            hash: Xxh64::new(0),
            until_block: u64::from(limits.block_bytes),
            blocks: 0,
            content_bytes: 0,
            extra_bytes: 0,
            token_ids: 0,
            images: 0,
            message: cut,
            whole: cut,
        };
        Self {
            limits,
            message_start: run.clone(),
            part_start: run.clone(),
            run,
            items: 0,
            blocks: Vec::new(),
            routing: None,
            aside: Xxh64::new(0),
            aside_bytes: 0,
            preambles: [None; PREAMBLES],
        }
    }

    /// Forgets the messages or prompts so far, not what precedes them.
    pub(crate) fn restart(&mut self) {
        let preambles = self.preambles;
        *self = Self::new(self.limits);
        self.preambles = preambles;
    }

    /// Begins a value that is hashed by itself.
    pub(crate) fn begin_aside(&mut self, seed: u64) {
        self.aside.reset(seed);
        self.aside_bytes = 0;
    }

    pub(crate) fn aside(&mut self, bytes: &[u8]) {
        self.aside.update(bytes);
        self.aside_bytes = self.aside_bytes.saturating_add(bytes.len() as u64);
    }

    /// Hash and length of the value that was hashed by itself; `None` if it was empty.
    pub(crate) fn end_aside(&self) -> Option<(u64, u64)> {
        (self.aside_bytes > 0).then(|| (self.aside.digest(), self.aside_bytes))
    }

    /// As [`Self::end_aside`] for an array or an object, for which `[]` and `{}` are empty.
    pub(crate) fn end_aside_container(&self) -> Option<(u64, u64)> {
        self.end_aside().filter(|&(_, bytes)| bytes > 2)
    }

    pub(crate) fn set_preamble(&mut self, which: Preamble, value: Option<(u64, u64)>) {
        if let Some(slot) = self.preambles.get_mut(which as usize) {
            *slot = value;
        }
    }

    pub(crate) fn begin_chat(&mut self) {
        self.restart();
        self.items = 1;
    }

    pub(crate) fn begin_message(&mut self) {
        self.run.message = self.fresh_cut();
        self.message_start = self.run.clone();
    }

    /// The content of the message under way is given again: the last one counts.
    pub(crate) fn restart_message(&mut self) {
        self.run = self.message_start.clone();
        self.blocks.truncate(self.run.blocks);
    }

    pub(crate) fn begin_part(&mut self) {
        self.part_start = self.run.clone();
    }

    /// The text of the part under way is given again: the last one counts.
    pub(crate) fn restart_part(&mut self) {
        self.run = self.part_start.clone();
        self.blocks.truncate(self.run.blocks);
    }

    /// Text of the message or prompt under way.
    pub(crate) fn text(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.run.message.room().min(self.run.whole.room());
            let (head, tail) = split(rest, room);
            self.append(head);
            let length = head.len() as u64;
            self.run.content_bytes = self.run.content_bytes.saturating_add(length);
            self.run.message.advance(length, &self.run.hash);
            self.run.whole.advance(length, &self.run.hash);
            rest = tail;
        }
    }

    /// Ends a part that held something other than text.
    pub(crate) fn mark_part(&mut self, sum: u64, images: u32, extra_bytes: u64) {
        self.mark(PART_MARK, sum);
        self.run.images = self.run.images.saturating_add(images);
        self.run.extra_bytes = self.run.extra_bytes.saturating_add(extra_bytes);
    }

    pub(crate) fn end_message(&mut self, author: Author, role: &[u8], sum: u64, extra_bytes: u64) {
        if author == Author::User && self.routing.is_none() {
            self.routing = Some(self.cut_or_all(self.run.message));
        }
        let joined = xxh64(&sum.to_le_bytes(), xxh64(role, 0));
        self.mark(MESSAGE_MARK, joined);
        self.run.extra_bytes = self.run.extra_bytes.saturating_add(extra_bytes);
    }

    /// Begins a prompt of a batch that is text.
    pub(crate) fn begin_text_item(&mut self) {
        self.begin_item(0);
    }

    /// Begins a prompt of a batch that is token ids.
    pub(crate) fn begin_ids_item(&mut self) {
        self.begin_item(IDS_SEED);
    }

    fn begin_item(&mut self, seed: u64) {
        self.items = self.items.saturating_add(1);
        self.run.hash.reset(seed);
        self.run.until_block = u64::from(self.limits.block_bytes);
        self.run.message = self.fresh_cut();
        self.message_start = self.run.clone();
    }

    /// Token ids of the prompt under way, their lower 32 bits.
    pub(crate) fn token_ids(&mut self, ids: &[u64]) {
        for group in ids.chunks(GROUP) {
            let mut words = [0u8; GROUP * TOKEN_BYTES];
            for (word, id) in words.as_chunks_mut().0.iter_mut().zip(group) {
                *word = (*id as u32).to_le_bytes();
            }
            self.words(words.get(..group.len() * TOKEN_BYTES).unwrap_or_default());
        }
        self.run.token_ids = self.run.token_ids.saturating_add(ids.len() as u64);
    }

    fn words(&mut self, words: &[u8]) {
        let mut rest = words;
        if self.run.message.at.is_none() {
            // An id is never cut in two.
            let room = self.run.message.left & !(TOKEN_BYTES as u64 - 1);
            let (head, tail) = split(rest, room);
            self.append(head);
            self.run.message.left = self.run.message.left.saturating_sub(head.len() as u64);
            if self.run.message.left < TOKEN_BYTES as u64 {
                self.run.message.at = Some(self.run.hash.digest());
            }
            rest = tail;
        }
        self.append(rest);
    }

    pub(crate) fn end_item(&mut self) {
        let empty = self.run.content_bytes == self.message_start.content_bytes
            && self.run.token_ids == self.message_start.token_ids;
        if self.routing.is_none() && !empty {
            self.routing = Some(self.cut_or_all(self.run.message));
        }
    }

    pub(crate) fn finish(self) -> PromptDigest {
        let empty = self.run.content_bytes == 0 && self.run.images == 0 && self.run.token_ids == 0;
        let routing = self
            .routing
            .unwrap_or_else(|| self.cut_or_all(self.run.whole));
        let seed = self.seed();
        let preamble_bytes = [Preamble::Tools, Preamble::System, Preamble::Documents]
            .into_iter()
            .filter_map(|which| self.preambles.get(which as usize).copied().flatten())
            .fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes));
        PromptDigest {
            text_bytes: self
                .run
                .content_bytes
                .saturating_add(self.run.extra_bytes)
                .saturating_add(preamble_bytes),
            token_ids: self.run.token_ids,
            images: self.run.images,
            items: self.items,
            routing: (!empty).then(|| mix(routing, seed)),
            blocks: self.blocks.iter().map(|&block| mix(block, seed)).collect(),
        }
    }

    /// Everything that precedes the messages, as one number; 0 for nothing.
    fn seed(&self) -> u64 {
        if self.preambles.iter().all(Option::is_none) {
            return 0;
        }
        let mut joined = Xxh64::new(0);
        for preamble in &self.preambles {
            let hash = preamble.map_or(0, |(hash, _)| hash);
            joined.update(&[u8::from(preamble.is_some())]);
            joined.update(&hash.to_le_bytes());
        }
        joined.digest()
    }

    fn fresh_cut(&self) -> Cut {
        Cut::new(self.limits.prefix_bytes, &self.run.hash)
    }

    fn cut_or_all(&self, cut: Cut) -> u64 {
        cut.at.unwrap_or_else(|| self.run.hash.digest())
    }

    fn mark(&mut self, mark: u8, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.append(&[mark, a, b, c, d, e, f, g, h]);
    }

    /// Feeds the canonical stream, taking the hash at the end of every block.
    fn append(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while self.run.blocks < self.limits.max_blocks as usize
            && self.limits.block_bytes > 0
            && !rest.is_empty()
        {
            let (head, tail) = split(rest, self.run.until_block);
            self.run.hash.update(head);
            self.run.until_block = self.run.until_block.saturating_sub(head.len() as u64);
            if self.run.until_block == 0 {
                self.blocks.push(self.run.hash.digest());
                self.run.blocks += 1;
                self.run.until_block = u64::from(self.limits.block_bytes);
            }
            rest = tail;
        }
        self.run.hash.update(rest);
    }
}

fn split(bytes: &[u8], at: u64) -> (&[u8], &[u8]) {
    let at = usize::try_from(at).map_or(bytes.len(), |at| at.min(bytes.len()));
    bytes.split_at_checked(at).unwrap_or((bytes, &[]))
}

fn mix(hash: u64, seed: u64) -> u64 {
    xxh64(&hash.to_le_bytes(), seed)
}
