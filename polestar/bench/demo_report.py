"""`bench demo` in words and tables, and the model card that carries them.

Contract: everything here is a pure function of the report (the JSON); a difference is called a difference only where `polestar.bench.paired` shows one. A
card keeps its hand-written text: only what stands between the markers `<!-- bench demo: NAME -->` and `<!-- /bench demo: NAME -->` is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from polestar.bench import common
from polestar.bench.paired import FEWEST

GOALS = {"math": 0.8, "list": 0.9, "facts": 0.9}  # exact answers, one token a pass; every other family GOAL
GOAL = 0.7
SYMBOLS = {"alpha": "α", "k": "k", "tau_upd": "τ_upd", "h": "h", "tau_s": "τ_s"}
COLUMNS = ("accuracy", "TPF", "TPF, all positions", "TPF to [EOS]", "NFE", "TPS", "rows per token")


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or n/a."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def percent(value: float, digits: int = 1) -> str:
    """'83.5 %'."""
    return f"{100 * value:.{digits}f} %"


def accuracy(row: dict[str, Any]) -> str:
    """'83.5 % (78-88)'."""
    return f"{percent(row['accuracy'])} ({100 * row['low']:.0f}-{100 * row['high']:.0f})"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def figures(row: dict[str, Any]) -> list[str]:
    """The cells of COLUMNS."""
    return [
        accuracy(row), number(row["tpf"]), number(row["tpf_all"]), number(row["tpf_answer"]), number(row["nfe"], 1), number(row["tps"], 0),
        number(row["rows_per_token"], 1),
    ]


def against(row: dict[str, Any]) -> list[str]:
    """Cells of the comparison with the base: problems won and lost with p, ratios of NFE and of seconds."""
    v = row["versus"]
    if v is None:
        return ["-"] * 3
    a = v["accuracy"]
    return [f"+{a['only_a']} -{a['only_b']}, p = {a['p']:.2g}", ratio(v["nfe"]), ratio(v["seconds"])]


def ratio(r: dict[str, Any]) -> str:
    """'0.87 (0.85-0.89)'."""
    return "n/a" if r["value"] is None else f"{r['value']:.2f} ({r['low']:.2f}-{r['high']:.2f})"


def table(t: dict[str, Any]) -> str:
    """One table with its comparison columns."""
    if not t["rows"]:
        return "No problem is finished by all rows yet."
    first = SYMBOLS.get(t["title"], "decoder")
    base = next((r["base"] for r in t["rows"] if r["base"]), None)
    own = {r["base"] for r in t["rows"] if r["base"]}
    against_whom = f"against {base}" if len(own) == 1 else "against τ_s 0.9"
    head = [first, *COLUMNS, f"right {against_whom}", "NFE x", "seconds x"]
    return grid(head, ([r["label"], *figures(r), *against(r)] for r in t["rows"]))


def one_token(report: dict[str, Any]) -> dict[str, Any] | None:
    """The row that commits one token a pass on full rows."""
    return next((r for t in report["tables"] for r in t["rows"] if r["job"] == "vanilla"), None)


def families(report: dict[str, Any]) -> str:
    """By family: length, accuracy one token a pass beside the goal, then every method's accuracy and TPF."""
    methods = next((t for t in report["tables"] if t["name"] == "methods" and t["rows"]), None)
    if methods is None:
        return ""
    others = [r for r in methods["rows"] if r["job"] != "vanilla"]
    vanilla = one_token(report)
    head = ["family", "n", "length", "one token a pass", "goal", *(f"{r['label']}: right, TPF" for r in others)]
    rows = []
    for family, about in report["families"].items():
        if family not in methods["rows"][0]["by_family"]:
            continue
        first = None if vanilla is None else vanilla["by_family"].get(family)
        goal = GOALS.get(family, GOAL)
        met = "" if first is None else " met" if first["accuracy"] >= goal else " not met"
        n = methods["rows"][0]["by_family"][family]["n"]
        rows.append(
            [family, str(n), str(about["gen_length"]), "-" if first is None else accuracy(first), percent(goal, 0) + met]
            + [f"{percent(r['by_family'][family]['accuracy'])}, {number(r['by_family'][family]['tpf'])}" for r in others]
        )
    return grid(head, rows)


def words(report: dict[str, Any]) -> list[str]:
    """What the numbers say, one sentence or two each."""
    by_name = {t["name"]: t for t in report["tables"] if t["rows"]}
    out = list(_about_problems(report))
    vanilla = one_token(report)
    if vanilla:
        missed = [f for f, r in vanilla["by_family"].items() if r["accuracy"] < GOALS.get(f, GOAL)]
        if vanilla["accuracy"] < 0.1:
            out.append("Hardly an answer is right, so the speeds below are those of guessing.")
        out.append("One token a pass, " + (f"the goal is not met in {', '.join(missed)}." if missed else "the goal is met in every family measured."))
    if "methods" in by_name:
        rows = {r["label"]: r for r in by_name["methods"]["rows"]}
        if rows.get("polestar", {}).get("versus"):
            out.append(verdict(rows["polestar"]))
        if "parallel" in rows:
            tpf = rows["parallel"]["tpf"]
            where = "n/a" if tpf is None else "within the 2 to 4" if 2 <= tpf <= 4 else "outside the 2 to 4"
            out.append(f"At τ_s 0.9 parallel decoding gives TPF {number(tpf)} ({number(rows['parallel']['tpf_answer'])} to [EOS]), {where} of the real models.")
    out += [verdict(r) for r in by_name.get("ablation", {"rows": []})["rows"] if r["versus"] and r["label"].startswith(("Polestar-Cache", "+ current"))]
    for row in by_name.get("tradeoff", {"rows": []})["rows"]:
        if row["label"].endswith("τ_s 0.5"):
            out.append(verdict(row))
    for t in by_name.values():
        if t["name"].startswith("scan "):
            out.append(_scan_words(t))
    return out


def _about_problems(report: dict[str, Any]) -> Iterable[str]:
    asked = report["asked"]["n"]
    for family, about in report["families"].items():
        if about["n"] < asked:
            yield f"The family {family} has {about['n']} held-out prompts, fewer than the {asked} asked for; all are used."
        if about["too_long"]:
            yield f"{about['too_long']} reference answers of {family} do not fit {about['gen_length']} tokens."
    foreign = {f: a["whole_words"] for f, a in report["families"].items() if a["whole_words"] < 0.97}
    if foreign:
        listed = ", ".join(f"{f} {percent(v, 0)}" for f, v in foreign.items())
        yield (
            f"Words of the prompts that are one token of this model: {listed}. Its tokenizer was trained on another wording, so these problems ask for "
            "words that it hardly knows, and answers take more tokens than they would."
        )


def verdict(row: dict[str, Any]) -> str:
    """A row against its base: accuracy, TPF, rows, seconds, each with what is shown and what is not."""
    v, a = row["versus"], row["versus"]["accuracy"]
    counts = f"it alone is right on {a['only_a']} problems, {row['base']} alone on {a['only_b']}; p = {a['p']:.2g}"
    if not a["shown"]:
        parts = [f"no difference in accuracy is shown ({counts})"]
    else:
        parts = [f"{'wins' if a['difference'] > 0 else 'loses'} {abs(a['difference']) * 100:.1f} points of accuracy ({counts})"]
    for name, what, more_is_better in (("tpf", "TPF", True), ("nfe", "NFE", False), ("rows", "rows recomputed", False), ("seconds", "time", False)):
        r = v[name]
        if r["value"] is None:
            continue
        if not r["shown"]:
            parts.append(f"{what} not shown to differ, {ratio(r)} times")
        else:
            parts.append(f"{'wins' if (r['value'] > 1) == more_is_better else 'loses'} in {what}, {ratio(r)} times")
    few = f" With fewer than {FEWEST} problems no difference in cost is claimed." if a["n"] < FEWEST else ""
    return f"{row['label']} against {row['base']}, {a['n']} problems: " + "; ".join(parts) + "." + few


def _scan_words(t: dict[str, Any]) -> str:
    symbol, found = SYMBOLS.get(t["title"], t["title"]), []
    for r in t["rows"]:
        v = r["versus"]
        if v is None:
            continue
        gains = []
        if v["accuracy"]["shown"]:
            gains.append(f"accuracy {v['accuracy']['difference'] * 100:+.1f} points")
        gains += [f"{name} {ratio(v[key])} times" for key, name in (("tpf", "TPF"), ("rows", "rows")) if v[key]["shown"]]
        if gains:
            found.append(f"{symbol} = {r['label']}: " + ", ".join(gains))
    return f"Scan of {symbol}, {t['problems']} problems: " + ("; ".join(found) if found else "no value differs from the default by more than chance") + "."


def setting(report: dict[str, Any]) -> str:
    """One paragraph: model, canvas, machine."""
    m, box = report["model"], report["machine"]
    lengths = ", ".join(f"{f} {a['gen_length']}" for f, a in report["families"].items())
    if not report["asked"]["gen_length"]:
        lengths += " (the longest answer and [EOS], up to a multiple of 32)"
    load = "" if box["load"] is None else f", load {box['load']:.1f} when the tables were made"
    return (
        f"Model {m['name']} ({m['parameters'] / 1e6:.2f} M parameters, {m['fingerprint']}), {m['dtype']} on {m['device']}, {box['threads']} of {box['cpus']} "
        f"CPU threads{load}; Polestar {m['polestar']}. Problems are held out of training by the crc32 of their prompt. Length of the canvas by family: "
        f"{lengths}; block 32. An answer is the text before the first [EOS], judged by its "
        "family's own check. TPF and TPS count non-[EOS] tokens; passes that fill the canvas with [EOS] count, except under *TPF to [EOS]*. Rows per token "
        "include update packets. In brackets 95 % intervals; `+a -b`: problems that this row alone, or its base alone, gets right, with McNemar's exact p."
    )


def measured(report: dict[str, Any], *, level: str = "##") -> str:
    """Words and tables."""
    parts = [setting(report)]
    if report["words"]:
        parts.append("\n".join(f"* {w}" for w in report["words"]))
    by_family = families(report)
    if by_family:
        parts += [f"{level} By family", by_family]
    scans = [t for t in report["tables"] if t["name"].startswith("scan ")]
    for t in report["tables"]:
        if t not in scans:
            parts += [f"{level} {t['title']} ({t['problems']} problems)", table(t)]
    for t in scans:
        parts += [f"{level} Scan of {SYMBOLS.get(t['title'], t['title'])} (Polestar, {t['problems']} problems)", table(t)]
    return "\n\n".join(parts)


def facts(report: dict[str, Any]) -> str:
    """What the model is."""
    m = report["model"]
    return grid(
        ("architecture", "width", "layers", "heads", "MLP", "vocabulary rows", "parameters", "weights file", "weights and tokenizer"),
        [(m["family"], str(m["d_model"]), str(m["n_layers"]), str(m["n_heads"]), str(m["mlp_hidden"]), str(m["vocab_size"]),
          f"{m['parameters']:,}", f"{m['bytes'] / 1e6:.1f} MB", m["fingerprint"].partition("-")[0])],
    )  # fmt: skip


def markdown(report: dict[str, Any]) -> str:
    """The whole report."""
    return f"# bench demo\n\n{measured(report)}"


# -- the card

SECTIONS = {"facts": facts, "measured": lambda report: measured(report, level="###")}


def _section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- bench demo: {name} -->\n).*?(<!-- /bench demo: {name} -->)", re.DOTALL)


def check_card(path: Path) -> None:
    """Raises CommandError when `path` has no place for tables."""
    if not path.is_file() or not any(_section(n).search(path.read_text(encoding="utf-8")) for n in SECTIONS):
        raise common.CommandError(
            f"{path} holds no place for tables; give --card a file with a line <!-- bench demo: measured --> and a later line <!-- /bench demo: measured -->"
        )


def fill_card(path: Path, report: dict[str, Any]) -> None:
    """Replace what stands between the markers; the file is written whole or not at all."""
    text = path.read_text(encoding="utf-8")
    for name, make in SECTIONS.items():
        content = make(report) + "\n"
        text = _section(name).sub(lambda m, content=content: m[1] + content + m[2], text)
    common.write_text(str(path), text.rstrip("\n"))
