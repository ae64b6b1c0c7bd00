# The image, for those who have docker; "make image" needs none. For another platform:
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.2.0 .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
RUN apt-get update && apt-get install -y --no-install-recommends libcap2-bin
ARG TARGETARCH
ARG VERSION=devel
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY pkg pkg
RUN CGO_ENABLED=0 GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /herald ./cmd/herald
# For another user than root: permitted, and made effective by the program itself.
RUN setcap cap_net_admin,cap_net_raw+p /herald
# kube-vip's manifests name theirs: command: ["/kube-vip", "manager"]. COPY would follow a link that it names.
RUN mkdir /links && ln -s herald /links/kube-vip

FROM scratch
COPY LICENSE /licenses/LICENSE
COPY --from=build /herald /herald
COPY --from=build /links/ /
ENTRYPOINT ["/herald"]
CMD ["manager"]
