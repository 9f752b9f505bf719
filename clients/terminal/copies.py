"""`turnkeeper export`, `import` and `fork`: copies of sessions."""

import contextlib
import sys
from pathlib import Path

from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.gateway_command import GatewayCommand, fail, with_gateway
from turnkeeper.models.http_responses import CopyReceipt


class CopyCommands(GatewayCommand):
    """Copies sessions to files, from files, and to other sessions. Each command returns its exit code."""

    @with_gateway
    async def export(self, gateway: GatewayClient, session_id: str, *, markdown: bool, output: Path | None) -> int:
        """Write the export to `output`, or to stdout; a file is complete or not there."""
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
        except OSError as error:
            return fail(texts.FILE_UNWRITABLE.format(path=output, reason=error.strerror))
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
        return 0

    @with_gateway
    async def import_file(self, gateway: GatewayClient, file: Path, *, session_id: str | None) -> int:
        """Start a session from an exported document."""
        try:
            document = _read(file)
        except OSError as error:
            return fail(texts.FILE_UNREADABLE.format(path=file, reason=error.strerror))
        return self._print_copy(await gateway.import_session(document, session_id))

    @with_gateway
    async def fork(
        self, gateway: GatewayClient, session_id: str, *, turn: str | None, new_id: str | None, title: str | None
    ) -> int:
        """Start a fork; `turn` is a number or an id."""
        is_number = turn is not None and turn.isascii() and turn.isdigit()
        last_turn = int(turn) if turn and is_number else turn
        return self._print_copy(await gateway.fork(session_id, turn=last_turn, new_id=new_id, title=title))

    def _print_copy(self, copy: CopyReceipt) -> int:
        command = self.resume_command(copy.workflow_id)
        self.print_result(copy, texts.COPIED.format(session_id=copy.workflow_id, command=command))
        return 0


def _read(file: Path) -> bytes:
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
