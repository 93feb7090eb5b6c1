"""A `basert serve` of its own for the tests."""

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

from openai import OpenAI

KEY = "a-key-for-tests"


class Server:
    """The real binary with the demo model on a free port; its log goes to a temporary file."""

    def __init__(self, *options):
        self.folder = tempfile.TemporaryDirectory()
        self.log = Path(self.folder.name) / "log"
        command = [os.environ["BASERT"], "serve", os.environ["MODEL"], "--port", "0", "--log-file", str(self.log)]
        self.process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith("listening on "):
                break
        else:
            raise RuntimeError(f"the server ended: {''.join(said)}")
        self.url = line.split()[-1]
        # Nobody may have to wait for a full pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def client(self, key=KEY):
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def answers(self):
        """How answers ended, from the log."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line["outcome"] for line in lines if line["event"] == "answer"]

    def stop(self):
        """Ends the server as a supervisor does; its exit status."""
        self.process.terminate()
        status = self.process.wait(timeout=60)
        self.process.stderr.close()
        self.folder.cleanup()
        return status
