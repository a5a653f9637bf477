"""What each lane is set to, where one set of controls serves both.

Contract: pure. Lane B follows lane A but for what is its own: a preset (`preset_b`; "" is lane A's) and values set while the controls showed lane B.
The controls hold the values of the lane in `shown`; of the other lane, a note (`note`, JSON) travels with the page: {"shown": "A", "own": lane B's own
values} or {"shown": "B", "values": lane A's, "followed": lane B's before anything was changed by hand}, and "chosen", what both were when it was
written. It comes from the page together with the controls, so that both always belong to each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from .controls import Controls, shown, written

SAME = ""  # the preset of a lane B that has none of its own
AS_A = "B: set as lane A"  # what is said of it
START = json.dumps({"shown": "A", "own": {}})  # a note of nothing


def reach(note: str, name: str) -> tuple[str, ...]:
    """The lanes that a control moves, by the page's note: lane B follows lane A where it has no value of its own."""
    held = json.loads(note or START)
    return ("B",) if held.get("shown") == "B" else ("A",) if name in held.get("own", {}) else ("A", "B")


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """Both lanes as the page has them."""

    controls: Controls
    method_a: str
    method_b: str
    both: bool
    preset: str
    preset_b: str = SAME
    shown: str = "A"
    base: dict[str, Any]  # lane A's values where nothing was changed by hand
    values: dict[str, Any]  # lane A's values
    own: dict[str, Any] = field(default_factory=dict)  # lane B's own values

    @classmethod
    def read(cls, controls: Controls, base: dict[str, Any], a: str, both: bool, b: str, preset: str, preset_b: str, note: str, given: Iterable[Any]) -> Lanes:
        """From the page's components; `given` are the values of the controls, in their order."""
        held = json.loads(note or START)
        values = controls.parsed(dict(zip(controls.names, given, strict=True)))
        other = controls.parsed(held.get("values") or held.get("own") or {})
        lanes = cls(controls=controls, method_a=a, method_b=b, both=bool(both), preset=preset, preset_b=preset_b or SAME, base=base, values=values)
        lanes = replace(lanes, preset=lanes._known(preset, a), preset_b=preset_b if preset_b in lanes._presets(b) else SAME)
        if held.get("shown") == "B":
            followed = controls.parsed(held.get("followed") or {})  # as it was then: another method or preset may have been chosen since
            own = {name: value for name, value in values.items() if value != followed.get(name)}
            return replace(lanes, shown="B", values=base | other, own=own)
        return replace(lanes, own=other)

    def presets(self, lane: str) -> list[Any]:
        """The choices of a lane's preset."""
        return list(self._presets(self.method_a)) if lane == "A" else [("as lane A", SAME), *self._presets(self.method_b)]

    def _presets(self, method: str) -> dict[str, Any]:
        return self.controls.tables.methods[method].presets

    def _known(self, preset: str, method: str) -> str:
        return preset if preset in self._presets(method) else "paper"

    def _specs(self, method: str) -> dict[str, Any]:
        return self.controls.tables.methods[method].specs

    def _with_b(self, values: dict[str, Any]) -> Lanes:
        """Lane B has these values: its own are those that it would not have by following lane A."""
        followed = self.followed()
        return replace(self, own={name: value for name, value in values.items() if value != followed[name]})

    # ---- what the lanes are ---------------------------------------------------------------------------------------------------

    def preset_of_b(self) -> str:
        """Lane B's preset: its own, else lane A's, else (where its method has none of that name) paper."""
        return self.preset_b or self._known(self.preset, self.method_b)

    def followed(self) -> dict[str, Any]:
        """Every control's value for a lane B that has none of its own.

        A preset of lane B's own puts that preset in place of lane A's; what was changed by hand for lane A holds for lane B as well.
        """
        values = self.controls.base(self.method_b, self.preset_of_b())
        if not self.preset_b:
            values |= {name: self.values[name] for name in self._specs(self.method_a) if name in self._specs(self.method_b)}
        return values | self.controls.changed(self.values, self.base)

    def of_b(self) -> dict[str, Any]:
        """Every control's value for lane B."""
        return self.followed() | self.own

    def lanes(self) -> dict[str, tuple[str, str, dict[str, Any]]]:
        """(method, preset, values) of each lane, for a `Request`."""

        def only(values: dict[str, Any], method: str) -> dict[str, Any]:
            return {name: value for name, value in values.items() if name in self._specs(method)}

        out = {"A": (self.method_a, self.preset, only(self.values, self.method_a))}
        if self.both:
            out["B"] = (self.method_b, self.preset_of_b(), only(self.of_b(), self.method_b))
        return out

    def differs(self) -> dict[str, Any]:
        """Lane B's own values that its method takes and that are not those it would have as a follower, in the controls' order."""
        followed = self.followed()
        return {n: self.own[n] for n in self.controls.names if n in self.own and n in self._specs(self.method_b) and self.own[n] != followed[n]}

    def says(self) -> str:
        """What lane B has of its own, in words."""
        if not self.both:
            return ""
        parts = [f"preset {self.preset_b}"] if self.preset_b else []
        parts += [f"{self.controls.params[n].called} {shown(v)}" for n, v in self.differs().items()]
        return f"B: {', '.join(parts)}" if parts else AS_A

    # ---- what the person does -------------------------------------------------------------------------------------------------

    def settled(self) -> Lanes:
        """Lane A at its method's preset, but for what was changed by hand. Lane B keeps its own."""
        preset = self._known(self.preset, self.method_a)
        base = self.controls.base(self.method_a, preset)
        return replace(self, preset=preset, base=base, values=base | self.controls.changed(self.values, self.base))

    def with_b(self, method: str | None = None, both: bool | None = None, preset_b: str | None = None) -> Lanes:
        """Lane B on or off, with another method or preset; its own values stay. Off, the controls show lane A."""
        method, both = method or self.method_b, self.both if both is None else both
        preset_b = self.preset_b if preset_b is None else preset_b
        preset_b = preset_b if preset_b in self._presets(method) else SAME
        return replace(self, method_b=method, both=both, preset_b=preset_b, shown=self.shown if both else "A")

    def show(self, lane: str) -> Lanes:
        """The controls show a lane."""
        return replace(self, shown="B" if lane == "B" and self.both else "A")

    def with_own(self, own: dict[str, Any]) -> Lanes:
        """Lane B has these values of its own, as far as it would not have them anyway; a preset that it would have anyway is not its own either."""
        lanes = replace(self, preset_b=SAME) if self.preset_b == self._known(self.preset, self.method_b) else self
        return lanes._with_b(lanes.followed() | own)

    def same(self) -> Lanes:
        """Lane B has nothing of its own."""
        return replace(self, preset_b=SAME, own={})

    def reset(self) -> Lanes:
        """The lane that is shown at the paper's values."""
        if self.shown == "B":
            lanes = replace(self, preset_b="paper")
            return lanes._with_b(self.controls.base(self.method_b, "paper"))
        base = self.controls.base(self.method_a, "paper")
        return replace(self, preset="paper", base=base, values=base)

    # ---- for the page ---------------------------------------------------------------------------------------------------------

    def note(self) -> str:
        """What the page keeps of the lane that the controls do not show."""
        kept = {"values": self.values, "followed": self.followed()} if self.shown == "B" else {"own": self.own}
        plain = {part: {name: written(value) for name, value in values.items()} for part, values in kept.items()}
        return json.dumps({"shown": self.shown, "chosen": self._chosen(), **plain})

    def _chosen(self) -> list[Any]:
        return [self.method_a, self.preset, self.both, self.method_b, self.preset_b]

    def news(self, note: str) -> str:
        """What was chosen since the page's note was written, in words; "" for another lane to show."""
        before = json.loads(note or START).get("chosen", self._chosen())
        new = [was != now for was, now in zip(before, self._chosen(), strict=True)]
        return "new method or preset" if any(new[:2]) else "new lane B" if any(new[2:4]) else "new preset of lane B" if new[4] else ""

    def told(self) -> str:
        """For the line under the switch: {"text", "names": controls to mark as lane B's own}."""
        return json.dumps({"text": self.says(), "names": list(self.differs()) if self.shown == "B" else []})

    def differ(self) -> bool:
        """Has lane B anything of its own?"""
        return bool(self.preset_b or self.differs())
