"""`turnkeeper export`, `import` and `fork`: copies of sessions."""

import sys
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.gateway_command import GatewayCommand, say
from turnkeeper.clients.terminal.one_shot import FAILED
from turnkeeper.clients.terminal.opening import resume_command


@dataclass(frozen=True)
class CopyCommands(GatewayCommand):
    """Copies sessions to files, from files, and to other sessions."""

    def export(self, session_id: str, *, markdown: bool, output: Path | None) -> int:
        """Write the export to `output`, or to stdout; a file is complete or not there. Return the exit code."""

        async def export(gateway: GatewayClient) -> int:
            parts = gateway.export(session_id, markdown=markdown)
            if output is None:
                async for part in parts:
                    sys.stdout.buffer.write(part)
                sys.stdout.buffer.flush()
                return 0
            partial = output.with_name(f"{output.name}.part")
            try:
                with partial.open("wb") as file:
                    async for part in parts:
                        file.write(part)
                partial.replace(output)
            finally:
                partial.unlink(missing_ok=True)
            return 0

        try:
            return self.run(export)
        except OSError as error:
            say(texts.FILE_UNWRITABLE.format(path=output, reason=error.strerror))
            return FAILED

    def import_file(self, file: Path, *, session_id: str | None) -> int:
        """Start a session from an exported document; return the exit code."""
        try:
            document = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        except OSError as error:
            say(texts.FILE_UNREADABLE.format(path=file, reason=error.strerror))
            return FAILED

        async def start(gateway: GatewayClient) -> int:
            answer = await gateway.import_session(document, session_id)
            command = resume_command(answer.workflow_id, url=self.url_option)
            self.print_answer(answer, texts.COPIED.format(session_id=answer.workflow_id, command=command))
            return 0

        return self.run(start)

    def fork(self, session_id: str, *, turn: str | None, new_id: str | None, title: str | None) -> int:
        """Start a fork; `turn` is a number or an id. Return the exit code."""
        is_number = turn is not None and turn.isascii() and turn.isdigit()

        async def start(gateway: GatewayClient) -> int:
            answer = await gateway.fork(
                session_id, turn=int(turn) if turn and is_number else turn, new_id=new_id, title=title
            )
            command = resume_command(answer.workflow_id, url=self.url_option)
            self.print_answer(answer, texts.COPIED.format(session_id=answer.workflow_id, command=command))
            return 0

        return self.run(start)
