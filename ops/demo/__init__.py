"""`turnkeeper demo`: a short story on a whole stack of its own, with crashes, and its verdict (OPS-3).

The chapters, each of which only knows those above it:

    record      what was asked, and everything that was seen of it
    verdict     which promises a record breaks: pure, and of use wherever there is a record
    printed     what people see
    stage       the processes, and how they are killed
    spectator   the client that watches, and keeps the record
    story       what is played, act by act
    evening     a performance from start to end: temporary folder, story, verdict, exit code
"""
