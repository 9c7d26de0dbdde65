"""Writes a tiny Llama with random weights and a tokenizer of its own, for a real engine on a CPU.

    make_model.py DIRECTORY < WORDS

WORDS has one word a line. In a text of these words with a blank after each, every word with its
blank is one token; other text is split into smaller pieces. The chat template joins the messages
and adds nothing, so that a prompt has as many tokens as its messages have words.

What it says is noise; what it costs and what its engine caches is not.
"""

import pathlib
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LAYERS = 6
WIDTH = 512
LONGEST_TOKENS = 8192
END = "<end>"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tokenizer(words):
    """A byte-level BPE with one token for each of the words followed by a blank."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\S+\s?|\s"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        # Enough for every merge that the words need; training stops when there are no more.
        vocab_size=256 + 8 * len(words),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    bpe.train_from_iterator((word + " " for word in words), trainer)
    split = [word for word in words if len(bpe.encode(word + " ").ids) != 1]
    if split:
        sys.exit(f"{len(split)} of {len(words)} words are more than one token, as {split[0]!r}")
    # The chat template is what the engine renders; it must not add a token of its own.
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=END)
    fast.chat_template = TEMPLATE
    return fast


def model(vocabulary_tokens, end_id):
    """Random weights, the same every time."""
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary_tokens,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=LONGEST_TOKENS,
        bos_token_id=None,
        eos_token_id=end_id,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )).to(torch.bfloat16)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_model.py DIRECTORY < WORDS")
    words = sys.stdin.read().split()
    if not words:
        sys.exit("no words on standard input")
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    made = tokenizer(words)
    made.save_pretrained(directory)
    model(len(made), made.eos_token_id).save_pretrained(directory)


main()
