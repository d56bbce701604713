"""Argument types for the tests of tasks: one of every type that is encoded and decoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, IntEnum, IntFlag, StrEnum
from typing import Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mode(StrEnum):
    FAST = "fast"


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Corner(Enum):
    """Members whose values are not themselves JSON."""

    LEFT = (0, 0)
    RIGHT = (1, 0)


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


@dataclass
class Tree:
    label: str
    children: list[Tree] = field(default_factory=list)
    depth: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.depth = 1 + max((child.depth for child in self.children), default=0)


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T
    more: tuple[T, ...] = ()


@dataclass(frozen=True)
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


class Size(NamedTuple):
    width: int
    height: int = 1


class Person(TypedDict):
    name: str
    born: NotRequired[datetime]


class Note(msgspec.Struct):
    text: str
    at: datetime
    ranks: dict[int, str] = {}


class Order(pydantic.BaseModel):
    number: int
    placed_at: datetime
    lines: list[int] = []


class StrictOrder(pydantic.BaseModel, strict=True):
    number: int
    placed_at: datetime
    place: str = pydantic.Field(default="", alias="where")
