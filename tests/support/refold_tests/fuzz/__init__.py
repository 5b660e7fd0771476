"""A fuzzer of every entrance: seeded, aware of each format's structure, repeatable case by case.

    world        a small log, and good files of every format made of it
    mutate       what is changed in bytes, texts and trees
    entrances    for each entrance, how a case is made from a random generator
    containers   Avro containers written as any other writer could
    target       the process that runs cases, many in one
    driver       runs cases against it, and judges what came of each
    campaign     the command: `python -m refold_tests.fuzz.campaign`

A case is named ENTRANCE/NUMBER; with the seed that is all there is to it.
"""
