"""Skills: folders with a `SKILL.md` that an agent knows by name and reads when it needs them (AGN-7).

    ---
    name: returns
    description: How to take goods back.
    ---
    Ask for the order first. …

Name and description stand in the agent's instructions; the tool `skill` reads the text, and other files of the folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from turnkeeper.features.agents.tool import Tool, ToolContext, ToolError, tool

FILE = "SKILL.md"
TOOL = "skill"
MAX_BYTES = 100_000
"""Of a file that the tool reads."""


class SkillError(ValueError):
    """A folder is no skill. The message says what is missing."""


@dataclass(frozen=True)
class Skill:
    """A skill, as its folder has it."""

    name: str
    description: str
    text: str
    folder: Path

    @classmethod
    def read(cls, folder: Path) -> "Skill":
        """Read a skill. Raises `SkillError`."""
        try:
            begin, head, text = (folder / FILE).read_text(encoding="utf-8").split("---\n", 2)
        except OSError as error:
            raise SkillError(f"{folder / FILE}: {error.strerror}.") from error
        except ValueError as error:  # also what is no text
            raise SkillError(f"{folder / FILE}: it begins with no lines between --- and ---.") from error
        lines = (line.partition(":") for line in head.splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
        if begin or not fields.get("name") or not fields.get("description"):
            raise SkillError(f"{folder / FILE}: between --- and --- there is no name: or no description: line.")
        return cls(fields["name"], fields["description"], text.strip(), folder)

    @property
    def digest(self) -> str:
        return sha256(f"{self.name}\n{self.description}\n{self.text}".encode()).hexdigest()

    def file(self, path: str) -> str:
        """Return a file of the folder. Raises `ToolError`, also for a path that leaves it."""
        target = (self.folder / path).resolve()
        if not target.is_relative_to(self.folder.resolve()) or not target.is_file():
            raise ToolError(f"The skill {self.name!r} has no file {path!r}; it has {', '.join(self.files) or 'none'}.")
        try:
            return target.read_bytes()[:MAX_BYTES].decode()
        except UnicodeDecodeError as error:
            raise ToolError(f"{path!r} is no text.") from error

    @property
    def files(self) -> list[str]:
        """The paths of its other files."""
        paths = (path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        return sorted(path for path in paths if path != FILE)


def with_skills(instructions: str, skills: Sequence[Skill]) -> str:
    """Return an agent's instructions with what it knows of its skills."""
    lines = [f"- {one.name}: {one.description}" for one in skills]
    return "\n".join([instructions, "", f"Read a skill with the tool {TOOL} before you do what it is for:", *lines])


def skill_tool(skills_of: Mapping[str, Iterable[Skill]]) -> Tool:
    """Return the tool that reads skills, for agents by their names."""
    by_agent = {agent: {one.name: one for one in skills} for agent, skills in skills_of.items()}

    @tool(effect="read", name=TOOL)
    def skill(context: ToolContext, name: str, file: str | None = None) -> str:
        """Read a skill by its name, or with `file`, one of its files."""
        skills = by_agent.get((context.agent or "").partition("@")[0], {})
        one = skills.get(name)
        if one is None:
            raise ToolError(f"There is no skill {name!r}; there are {', '.join(skills) or 'none'}.")
        if file is not None:
            return one.file(file)
        return f"{one.text}\n\nIts files: {', '.join(one.files)}." if one.files else one.text

    return skill
