from tessera.cli.main import main

main()
