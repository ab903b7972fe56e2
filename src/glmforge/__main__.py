"""`python -m glmforge`, which is also what torchrun starts: `torchrun -m glmforge train CONFIG`."""

import sys


def main() -> None:
    """The command line; Ctrl-C while it is still being imported is one line, too."""
    try:
        from glmforge.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("glmforge: interrupted", file=sys.stderr)
        sys.exit(130)
    except SystemExit as ended:
        meeting = sys.modules.get("glmforge.runtime.meeting")
        if meeting is not None:
            meeting.end_if_met(ended)
        raise


if __name__ == "__main__":
    main()
