# The image: one static binary and nothing else. "make build" makes bin/herald first.
FROM scratch
COPY bin/herald /herald
ENTRYPOINT ["/herald"]
CMD ["manager"]
