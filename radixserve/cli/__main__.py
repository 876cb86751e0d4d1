"""python -m radixserve.cli is the command line too."""

from radixserve.cli import main

if __name__ == "__main__":
    main()
