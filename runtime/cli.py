"""strata-run BUNDLE: one prompt in, one text out."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strata_runtime.bundle_load import Bundle, load_bundle, open_draft, open_weights
from strata_runtime.chat import ChatTemplate, encode_chat
from strata_runtime.command import Parser, positive_int, run_command, thread_count, write_out
from strata_runtime.devices import DEVICES, device_for, open_device
from strata_runtime.errors import OptionError, RequestError
from strata_runtime.gguf_file import GgufFile
from strata_runtime.launch import Sampling
from strata_runtime.options import Environment, read_environment
from strata_runtime.request import FAILED, Request, check_request
from strata_runtime.text_stream import TextStream
from strata_runtime.tokenizer import Tokenizer

NAME = "strata-run"
MAX_TOKENS = 256


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    args = _parser().parse_args(argv)
    return run_command(NAME, lambda: _run(args))


def _parser() -> Parser:
    defaults = Sampling()
    parser = Parser(NAME, description="Runs one prompt through a bundle.")
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder from strata-compile")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="text to go on from, as it is")
    prompt.add_argument("--chat", metavar="TEXT", help="message to answer, by the chat template")
    prompt.add_argument("--prompt-ids", metavar="1,5,9", help="token ids to go on from")
    parser.add_argument("--system", metavar="TEXT", help="system message before --chat")
    parser.add_argument("--max-tokens", type=positive_int, default=MAX_TOKENS, metavar="N")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before it")
    parser.add_argument("--temperature", type=float, default=defaults.temperature, metavar="T")
    parser.add_argument("--top-k", type=int, default=defaults.top_k, metavar="K")
    parser.add_argument("--top-p", type=float, default=defaults.top_p, metavar="P")
    parser.add_argument("--min-p", type=float, default=defaults.min_p, metavar="P")
    parser.add_argument("--repeat-penalty", type=float, default=defaults.repeat_penalty)
    parser.add_argument("--presence-penalty", type=float, default=defaults.presence_penalty)
    parser.add_argument("--frequency-penalty", type=float, default=defaults.frequency_penalty)
    parser.add_argument(
        "--penalty-last", type=positive_int, default=64, metavar="N", help="default 64"
    )
    parser.add_argument("--seed", type=int, default=defaults.seed, metavar="N", help="default 0")
    parser.add_argument("--device", choices=DEVICES, help="default: cuda, where there is one")
    parser.add_argument("--threads", type=thread_count, metavar="N", help="for each stage")
    parser.add_argument("--model", type=Path, metavar="FILE", help="where the GGUF file is now")
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    return parser


@dataclass
class _Output:
    """The text as it comes, and when its tokens came."""

    stream: TextStream | None
    write: Callable[[str], None]
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def watch(self, token: int) -> bool:
        """Take a token; is the text at its end?"""
        self.tokens.append(token)
        self.times.append(time.perf_counter())
        if self.stream is None:
            self.write(f"{token} ")
            return False
        self.write(self.stream.push(token))
        return self.stream.stopped

    def finish(self) -> str | None:
        """The end of the text, and all of it (None without a vocabulary)."""
        if self.stream is None:
            return None
        self.write(self.stream.finish())
        return self.stream.text

    def tokens_per_s(self, start: float) -> float:
        """Between the first and the last token; for a single one, from `start`."""
        if len(self.times) > 1:
            return (len(self.times) - 1) / (self.times[-1] - self.times[0])
        return 1.0 / (self.times[-1] - start) if self.times else 0.0


def _run(args: argparse.Namespace) -> int:
    environment = read_environment()
    bundle = load_bundle(args.bundle)
    gguf = open_weights(bundle, environment.cache, args.model)
    tokenizer = Tokenizer.from_metadata(gguf.metadata)
    prompt = _prompt(args, gguf, tokenizer)
    ends = tokenizer.eos_ids if tokenizer else frozenset[int]()
    request = Request(0, tuple(prompt), args.max_tokens, ends, _sampling(args))
    model = bundle.manifest.model
    check_request(request, vocab=model.vocab, context=bundle.manifest.shape.context)
    raw = args.chat is None
    stream = TextStream(tokenizer, args.stop, continues=raw) if tokenizer else None
    output = _Output(stream, (lambda text: None) if args.json else write_out)
    return _serve(args, environment, bundle, gguf, request, output)


def _serve(
    args: argparse.Namespace,
    environment: Environment,
    bundle: Bundle,
    gguf: GgufFile,
    request: Request,
    output: _Output,
) -> int:
    """Load the device, and only then: it takes a second to import, and all the memory."""
    from strata_runtime.engine import Engine

    draft = open_draft(bundle, environment.cache)
    name = device_for(bundle, args.device)
    device = open_device(name, bundle, gguf, draft, args.threads or environment.threads)
    try:
        engine = Engine(bundle.manifest, device)
        start = time.perf_counter()
        engine.submit(request, output.watch)
        updates = list(engine.updates())
        end = updates[-1]
    finally:
        device.close()
    text = output.finish()
    if end.finish == FAILED:
        raise RequestError("the model's logits allow no token (not a number, or all masked)")
    result: dict[str, object] = {
        "token_ids": output.tokens,
        "text": text,
        "prompt_tokens": len(request.prompt),
        "tokens_per_s": round(output.tokens_per_s(start), 2),
        "finish_reason": end.finish,
        "logits_hash": end.logits_hash,
        "drafted": sum(update.drafted for update in updates),
        "accepted": len(output.tokens) - len(updates),
    }
    _report(args, result)
    return 0


def _report(args: argparse.Namespace, result: dict[str, object]) -> None:
    if args.json:
        write_out(json.dumps(result) + "\n")
        return
    write_out("\n")
    tokens = result["token_ids"]
    assert isinstance(tokens, list)
    sys.stderr.write(
        f"[{result['prompt_tokens']} prompt tokens, {len(tokens)} tokens, "
        f"{result['tokens_per_s']} tokens/s, finish: {result['finish_reason']}]\n"
    )


def _prompt(args: argparse.Namespace, gguf: GgufFile, tokenizer: Tokenizer | None) -> list[int]:
    if args.system is not None and args.chat is None:
        raise OptionError("--system goes with --chat")
    if args.prompt_ids is not None:
        if args.stop and tokenizer is None:
            raise OptionError("--stop needs a vocabulary, which the model file does not have")
        return _ids(args.prompt_ids)
    if tokenizer is None:
        raise RequestError(f"{gguf.path}: has no vocabulary; give token ids with --prompt-ids")
    if args.prompt is not None:
        return tokenizer.encode(args.prompt)
    messages = [{"role": "user", "content": args.chat}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    template = ChatTemplate.from_metadata(gguf.metadata, tokenizer)
    return encode_chat(tokenizer, template, messages)


def _ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if bad := [part for part in parts if not part.isdecimal() or len(part) > 10]:
        raise OptionError(f"--prompt-ids: {bad[0]!r} is not a token id; write ids as 1,5,9")
    return [int(part) for part in parts]


def _sampling(args: argparse.Namespace) -> Sampling:
    penalised = (args.repeat_penalty, args.presence_penalty, args.frequency_penalty) != (1, 0, 0)
    return Sampling(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repeat_penalty=args.repeat_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        penalty_last=args.penalty_last if penalised else 0,
        seed=args.seed,
    )
