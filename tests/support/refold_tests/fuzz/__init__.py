"""A fuzzer of every entrance: seeded, aware of each format's structure, repeatable case by case.

    world          a small log, and good files of every format made of it
    mutate, trees  what is changed in bytes, texts and JSON; in CBOR and records
    entrances      for each entrance, how a case is made from a random generator; these are in modules of their own:
    records        the records of each topic of a log on Kafka, and answers
    conversations  what is sent to a log's owner, and to a worker's pages
    containers     Avro containers written as any other writer could
    target         the process that runs cases, many in one: commands, and
    readers        what reads records, and
    served         the owner and the pages that conversations are had with
    driver         runs cases against it, and judges what came of each
    kafka          rounds on a real broker: hostile records in every topic, hostile requests to a worker
    shrink         makes a failing case smaller
    campaign       the command: `python -m refold_tests.fuzz.campaign`

A case is named ENTRANCE/NUMBER; with the seed that is all there is to it.
"""
