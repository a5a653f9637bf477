"""Text to token ids and back: chat templates, display text, bytes of single tokens.

Contract: user text never turns into special tokens: the tokenizer is loaded without its added tokens, and the chat template alone puts
those in. Only json, merges and template text of the model directory are read; the template runs in a sandbox and never sees user text.
A directory without a tokenizer gives a codec that shows ids (`‹29›`) and cannot encode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from polestar.models.transformer import ModelConfig

Messages = Sequence[dict[str, str]]
ROLES = ("system", "user", "assistant")

# Used when a checkpoint brings no template of its own. (Jinja drops a newline at the very end of a template, not one in an expression.)
_HEADERS = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
_CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
_FALLBACK = (("<|start_header_id|>", _HEADERS), ("<|im_start|>", _CHATML))

# Split pattern of the Qwen2 tokenizer, for checkpoints that ship vocab.json and merges.txt but no tokenizer.json (Dream).
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_OPEN, _CLOSE = "\ue000", "\ue001"  # private-use marks that stand for message contents while a template is rendered


def token_named(token: int, bytes_of: Callable[[int], bytes]) -> str:
    """A token in a sentence, by its text and id; by its bytes where it is no whole text; by the id alone where `bytes_of` does not know it."""
    try:
        raw = bytes_of(token)
    except (KeyError, IndexError, ValueError, OverflowError):  # no id of this vocabulary
        raw = b""
    if not raw:
        return f"token {token}"
    try:
        return f"token {raw.decode()!r} (id {token})"
    except UnicodeDecodeError:
        return f"token {raw.hex(' ').upper()} (id {token}, part of a character)"


class TextCodec:
    """Encodes chats and decodes ids for one checkpoint."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer | None,
        added: dict[int, tuple[str, bool]],
        named: dict[str, str] | None = None,
        template: str | None = None,
        config: ModelConfig | None = None,
    ):
        """`added`: id -> (content, is special). `named`: "bos_token" -> its content, and so on. `template`: a jinja chat template."""
        self.tokenizer = tokenizer
        self.added = dict(added)
        self.named = dict(named or {})
        self.template = template
        self._id_of = {content: id_ for id_, (content, _) in self.added.items()}
        self._special = {id_ for id_, (_, special) in self.added.items() if special}
        if config is not None:
            self._special |= {config.mask_id, config.pad_id, *config.eos_ids} | ({config.bos_id} if config.bos_id is not None else set())

    @classmethod
    def from_directory(cls, directory: str | Path, config: ModelConfig | None = None) -> TextCodec:
        """The codec of a model directory. Raises ValueError when its tokenizer files are damaged."""
        directory = Path(directory)
        settings = _json(directory / "tokenizer_config.json")
        entries = {int(i): e for i, e in (settings.get("added_tokens_decoder") or {}).items()}
        for content, id_ in _json(directory / "added_tokens.json").items():
            entries.setdefault(int(id_), {"content": content, "special": True})
        data = _json(directory / "tokenizer.json")
        for entry in data.get("added_tokens") or ():
            entries.setdefault(int(entry["id"]), entry)
        added = {id_: (e["content"], bool(e.get("special", True))) for id_, e in entries.items()}
        named = {}
        for source in (_json(directory / "special_tokens_map.json"), settings):
            for key, value in source.items():
                content = value.get("content") if isinstance(value, dict) else value
                if key.endswith("_token") and isinstance(content, str):
                    named[key] = content
        tokenizer = _load(directory, data)
        template = _template(directory, settings)
        if template is None and tokenizer is not None:
            contents = {content for content, _ in added.values()}
            template = next((text for mark, text in _FALLBACK if mark in contents), None)
        return cls(tokenizer=tokenizer, added=added, named=named, template=template, config=config)

    # -- encoding

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; what looks like a special token in it stays text. Raises ValueError without a tokenizer."""
        if self.tokenizer is None:
            raise ValueError("this model directory has no tokenizer, so text cannot be encoded; give prompt ids instead (--prompt-ids)")
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        if self._special.isdisjoint(ids):
            return ids
        # A vocabulary that holds a special string as one of its words: spell that stretch out character by character.
        return [id_ for char in text for id_ in self.tokenizer.encode(char, add_special_tokens=False).ids if id_ not in self._special]

    def encode_chat(self, prompt: str | Messages) -> list[int]:
        """Ids of a chat that ends where the assistant's answer begins.

        `prompt`: one user message, or messages {"role": "system" | "user" | "assistant", "content": text} in order. A checkpoint without
        a chat template (a base model) gets the contents as plain text. Raises ValueError for an empty prompt or an unknown role.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        for message in messages:
            if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
                raise ValueError(f"a message has role {message.get('role')!r}; use one of {', '.join(ROLES)} with text as content")
        if not messages or not messages[-1]["content"].strip():
            raise ValueError("the prompt is empty; write a question or an instruction")
        ids: list[int] = []
        text = ""
        for piece in self._pieces(messages):
            if isinstance(piece, int):
                ids += (self.encode(text) if text else []) + [piece]
                text = ""
            else:
                text += piece
        return ids + (self.encode(text) if text else [])

    def _pieces(self, messages: list[dict[str, str]]) -> Iterable[str | int]:
        """The rendered chat as text and special ids. The template sees marks in place of contents, so it cannot be steered by them."""
        if self.template is None:
            if "bos_token" in self.named and self.named["bos_token"] in self._id_of:
                yield self._id_of[self.named["bos_token"]]
            yield "\n\n".join(m["content"] for m in messages)
            return
        # Blanks around a mark survive only where the template does not trim; then the content is not trimmed either.
        marked = [{"role": m["role"], "content": f" {_OPEN}{i}{_CLOSE} "} for i, m in enumerate(messages)]
        rendered = _render(self.template, marked, self.named)
        cut = "|".join(re.escape(c) for c in sorted(self._id_of, key=len, reverse=True))
        for part in re.split(f"( ?{_OPEN}\\d+{_CLOSE} ?" + (f"|{cut})" if cut else ")"), rendered):
            if part in self._id_of:
                yield self._id_of[part]
            elif _OPEN in part:
                content = messages[int(part.strip()[1:-1])]["content"]
                content = content if part.startswith(" ") else content.lstrip()
                yield content if part.endswith(" ") else content.rstrip()
            elif part:
                yield part

    # -- decoding

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of `ids`. Special tokens are left out, or shown as their name when `skip_special` is False."""
        out: list[str] = []
        run: list[int] = []

        def flush() -> None:
            if run:
                out.append(self.tokenizer.decode(run, skip_special_tokens=False))
                run.clear()

        for id_ in map(int, ids):
            if self.tokenizer is None or id_ in self.added or self.is_special(id_) or self.tokenizer.id_to_token(id_) is None:
                flush()
                if not (skip_special and self.is_special(id_)):
                    out.append(self.token_text(id_))
            else:
                run.append(id_)
        flush()
        return "".join(out)

    def token_text(self, id_: int) -> str:
        """Display text of one token, spaces and newlines as they are; `‹id›` where there is none; U+FFFD where bytes are partial."""
        return self.token_bytes(id_).decode("utf-8", errors="replace")

    def token_bytes(self, id_: int) -> bytes:
        """Bytes of one token: part of a character where the vocabulary is made of bytes."""
        id_ = int(id_)
        if id_ in self.added:
            return self.added[id_][0].encode()
        token = None if self.tokenizer is None else self.tokenizer.id_to_token(id_)
        if token is None:
            return f"‹{id_}›".encode()
        if self._byte_level:
            table = _byte_of()
            return bytes(table[c] for c in token) if all(c in table for c in token) else token.encode()
        if match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
            return bytes([int(match[1], 16)])
        return token.replace("\u2581", " ").encode()

    def is_special(self, id_: int) -> bool:
        """True for [MASK], [EOS], padding and the marks of the chat template."""
        return int(id_) in self._special

    @cached_property
    def _byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(json.loads(self.tokenizer.to_str()).get("decoder"))

    @property
    def vocab_size(self) -> int:
        """Ids that have a text: one more than the largest of them, 0 without a tokenizer."""
        known = self.tokenizer.get_vocab_size(with_added_tokens=False) if self.tokenizer is not None else 0
        return max([known, *(id_ + 1 for id_ in self.added)])


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not valid json ({error}); fetch the file again") from None
    return data if isinstance(data, dict) else {}


def _load(directory: Path, data: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer without its added tokens, from tokenizer.json or from vocab.json and merges.txt; None when there is neither."""
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    if not data and not (vocab.is_file() and merges.is_file()):
        return None
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    try:
        if data:
            return Tokenizer.from_str(json.dumps({**data, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}))
        tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"the tokenizer of {directory} cannot be read ({error}); fetch its files again") from None
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_QWEN_SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _template(directory: Path, settings: dict[str, Any]) -> str | None:
    """The checkpoint's chat template, wherever its files keep it."""
    if (file := directory / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    found = settings.get("chat_template") or _json(directory / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        found = next((e["template"] for e in found if e.get("name") == "default"), None)
    return found


def _render(template: str, messages: list[dict[str, str]], named: dict[str, str]) -> str:
    """The chat template in jinja's sandbox, set up as checkpoints expect it. Raises ValueError when it fails."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    try:
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        return env.from_string(template).render(messages=messages, add_generation_prompt=True, tools=None, raise_exception=refuse, **named)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ValueError(f"the model's chat template does not accept these messages ({error}); change their order or roles") from None


@lru_cache(maxsize=1)
def _byte_of() -> dict[str, int]:
    """Character of a byte-level vocabulary -> byte: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}
